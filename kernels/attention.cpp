#include "kernels/attention.h"

#include <cmath>
#include <limits>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Keys of one block: their transposed copy and a tile of scores stay in the nearest caches.
constexpr int64_t kKeyBlock = 128;
// Queries of one tile. Small, because a tile on the diagonal computes scores that it does not use.
constexpr int64_t kForwardTile = 16;
constexpr int64_t kBackwardTile = 32;
static_assert(kKeyBlock % kForwardTile == 0 && kKeyBlock % kBackwardTile == 0);
// Queries that are worked on before the next ones, so that scratch memory does not grow with the sequence.
constexpr int64_t kQuerySpan = 1024;
static_assert(kQuerySpan % kKeyBlock == 0);

// Rows of scores are padded to whole vectors of any instruction set.
template <class T>
constexpr int64_t kScorePadding = 64 / static_cast<int64_t>(sizeof(T));

// Scratch memory of one task, cut into arrays.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : next_(static_cast<T*>(thread_scratch(1, sizeof(T) * static_cast<size_t>(elements + 8 * kScorePadding<T>)))) {}

  T* take(int64_t elements) {
    T* array = next_;
    next_ += round_up(elements, kScorePadding<T>);
    return array;
  }

 private:
  T* next_;
};

// A tile of queries [query, query + rows) against keys [key, key + keys) of one sequence.
struct Tile {
  int64_t query, rows, key, keys;

  // Keys of the block that row 0 sees.
  int64_t first_visible() const { return query - key + 1; }
  template <class T>
  int64_t padded_keys() const {
    return round_up(keys, kScorePadding<T>);
  }
};

// Queries [first, end) of a sequence.
struct Span {
  int64_t first, end;
};

// Calls body(span) for the spans of a sequence, in order.
template <class Body>
void for_query_spans(int64_t length, Body&& body) {
  for (int64_t first = 0; first < length; first += kQuerySpan) body(Span{first, std::min(length, first + kQuerySpan)});
}

// Calls body(tile) for the tiles of a span's queries that see the block of keys at `key`.
template <class Body>
void for_query_tiles(const Span& span, int64_t key, int64_t tile_rows, Body&& body) {
  for (int64_t query = std::max(key, span.first); query < span.end; query += tile_rows) {
    const int64_t rows = std::min(tile_rows, span.end - query);
    body(Tile{query, rows, key, std::min(kKeyBlock, query + rows - key)});
  }
}

// out[D, kKeyBlock] = the block's rows of x transposed, zeros in the padding.
template <class T>
void pack_block(const Rows<T>& x, int64_t first, int64_t count, int64_t head_size, T* out) {
  const int64_t padded = round_up(count, kScorePadding<T>);
  for (int64_t d = 0; d < head_size; ++d) std::fill(out + d * kKeyBlock + count, out + d * kKeyBlock + padded, T{0});
  row_ops<T>().transpose(count, head_size, x[first], x.pitch, out, kKeyBlock);
}

// The columns of one head and the rows of one sequence.
template <class T>
Rows<T> head_rows(const Tensor& tensor, int64_t first, int64_t head, int64_t head_size) {
  const Rows<T> rows = rows_of<T>(tensor);
  return {rows[first] + head * head_size, rows.pitch};
}

template <class T>
class ForwardTask {
 public:
  ForwardTask(const AttentionForwardArgs& args, int64_t first, int64_t length, int64_t head)
      : length_(length),
        head_size_(args.q.columns() / args.heads),
        scale_(static_cast<T>(args.scale)),
        q_(head_rows<T>(args.q, first, head, head_size_)),
        k_(head_rows<T>(args.k, first, head, head_size_)),
        v_(head_rows<T>(args.v, first, head, head_size_)),
        out_(head_rows<T>(args.out, first, head, head_size_)),
        scratch_(head_size_ * (kKeyBlock + kForwardTile) + kForwardTile * (kKeyBlock + 1) + 2 * kQuerySpan),
        keys_(scratch_.take(head_size_ * kKeyBlock)),
        queries_(scratch_.take(head_size_ * kForwardTile)),
        scores_(scratch_.take(kForwardTile * kKeyBlock)),
        factor_(scratch_.take(kForwardTile)),
        max_(scratch_.take(kQuerySpan)),
        sum_(scratch_.take(kQuerySpan)) {
    if (args.log_sum_exp.defined()) log_sum_exp_ = head_rows<T>(args.log_sum_exp, first, head, 1);
  }

  void run() {
    for_query_spans(length_, [&](const Span& span) { run_span(span); });
  }

 private:
  void run_span(const Span& span) {
    std::fill_n(max_, kQuerySpan, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, kQuerySpan, T{0});
    for (int64_t key = 0; key < span.end; key += kKeyBlock) {
      pack_block(k_, key, std::min(kKeyBlock, span.end - key), head_size_, keys_);
      for_query_tiles(span, key, kForwardTile, [&](const Tile& tile) {
        process(tile, max_ + tile.query - span.first, sum_ + tile.query - span.first);
        if (tile.query < key + kKeyBlock) finish(tile, max_ + tile.query - span.first, sum_ + tile.query - span.first);
      });
    }
  }

  void process(const Tile& tile, T* max, T* sum) {
    ops_.scale_rows(queries_, head_size_, scale_, q_[tile.query], q_.pitch, tile.rows, head_size_);
    ops_.gemm(tile.rows, tile.padded_keys<T>(), head_size_, queries_, head_size_, 1, keys_, kKeyBlock, scores_,
              kKeyBlock);
    ops_.online_softmax(scores_, kKeyBlock, tile.rows, tile.first_visible(), tile.padded_keys<T>(), max, sum, factor_);
    if (tile.key == 0) {
      ops_.gemm(tile.rows, head_size_, tile.keys, scores_, kKeyBlock, 1, v_[0], v_.pitch, out_[tile.query], out_.pitch);
      return;
    }
    for (int64_t i = 0; i < tile.rows; ++i)
      if (factor_[i] != 1) ops_.scale(out_[tile.query + i], factor_[i], head_size_);
    ops_.gemm_add(tile.rows, head_size_, tile.keys, scores_, kKeyBlock, 1, v_[tile.key], v_.pitch, out_[tile.query],
                  out_.pitch);
  }

  // The last block of keys that these queries see is done.
  void finish(const Tile& tile, const T* max, const T* sum) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      ops_.scale(out_[tile.query + i], 1 / sum[i], head_size_);
      if (log_sum_exp_) *log_sum_exp_[tile.query + i] = max[i] + std::log(sum[i]);
    }
  }

  const RowOps<T>& ops_ = row_ops<T>();
  int64_t length_;
  int64_t head_size_;
  T scale_;
  Rows<T> q_, k_, v_, out_, log_sum_exp_;
  Scratch<T> scratch_;
  T* keys_;
  T* queries_;
  T* scores_;
  T* factor_;
  T* max_;
  T* sum_;
};

template <class T>
class BackwardTask {
 public:
  BackwardTask(const AttentionBackwardArgs& args, int64_t first, int64_t length, int64_t head)
      : length_(length),
        head_size_(args.q.columns() / args.heads),
        scale_(static_cast<T>(args.scale)),
        q_(head_rows<T>(args.q, first, head, head_size_)),
        k_(head_rows<T>(args.k, first, head, head_size_)),
        v_(head_rows<T>(args.v, first, head, head_size_)),
        out_(head_rows<T>(args.out, first, head, head_size_)),
        d_out_(head_rows<T>(args.d_out, first, head, head_size_)),
        log_sum_exp_(head_rows<T>(args.log_sum_exp, first, head, 1)),
        d_q_(head_rows<T>(args.d_q, first, head, head_size_)),
        d_k_(head_rows<T>(args.d_k, first, head, head_size_)),
        d_v_(head_rows<T>(args.d_v, first, head, head_size_)),
        scratch_(head_size_ * (2 * kKeyBlock + kBackwardTile) + 2 * kBackwardTile * kKeyBlock + kQuerySpan),
        keys_(scratch_.take(head_size_ * kKeyBlock)),
        values_(scratch_.take(head_size_ * kKeyBlock)),
        queries_(scratch_.take(head_size_ * kBackwardTile)),
        p_(scratch_.take(kBackwardTile * kKeyBlock)),
        d_scores_(scratch_.take(kBackwardTile * kKeyBlock)),
        delta_(scratch_.take(kQuerySpan)) {}

  void run() {
    for (int64_t i = 0; i < length_; ++i)
      for (const Rows<T>& gradient : {d_q_, d_k_, d_v_}) std::fill_n(gradient[i], head_size_, T{0});
    for_query_spans(length_, [&](const Span& span) { run_span(span); });
    for (int64_t i = 0; i < length_; ++i) ops_.scale(d_q_[i], scale_, head_size_);
  }

 private:
  void run_span(const Span& span) {
    for (int64_t i = span.first; i < span.end; ++i) delta_[i - span.first] = ops_.dot(d_out_[i], out_[i], head_size_);
    for (int64_t key = 0; key < span.end; key += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, span.end - key);
      pack_block(k_, key, count, head_size_, keys_);
      pack_block(v_, key, count, head_size_, values_);
      for_query_tiles(span, key, kBackwardTile,
                      [&](const Tile& tile) { process(tile, delta_ + tile.query - span.first); });
    }
  }

  void process(const Tile& tile, const T* delta) {
    const int64_t padded = tile.padded_keys<T>();
    ops_.scale_rows(queries_, head_size_, scale_, q_[tile.query], q_.pitch, tile.rows, head_size_);
    ops_.gemm(tile.rows, padded, head_size_, queries_, head_size_, 1, keys_, kKeyBlock, p_, kKeyBlock);
    ops_.known_softmax(p_, kKeyBlock, tile.rows, tile.first_visible(), padded, log_sum_exp_[tile.query],
                       log_sum_exp_.pitch);
    ops_.gemm(tile.rows, padded, head_size_, d_out_[tile.query], d_out_.pitch, 1, values_, kKeyBlock, d_scores_,
              kKeyBlock);
    ops_.softmax_backward(d_scores_, p_, kKeyBlock, tile.rows, padded, delta);
    ops_.gemm_add(tile.keys, head_size_, tile.rows, p_, 1, kKeyBlock, d_out_[tile.query], d_out_.pitch, d_v_[tile.key],
                  d_v_.pitch);
    ops_.gemm_add(tile.keys, head_size_, tile.rows, d_scores_, 1, kKeyBlock, queries_, head_size_, d_k_[tile.key],
                  d_k_.pitch);
    ops_.gemm_add(tile.rows, head_size_, tile.keys, d_scores_, kKeyBlock, 1, k_[tile.key], k_.pitch, d_q_[tile.query],
                  d_q_.pitch);
  }

  const RowOps<T>& ops_ = row_ops<T>();
  int64_t length_;
  int64_t head_size_;
  T scale_;
  Rows<T> q_, k_, v_, out_, d_out_, log_sum_exp_, d_q_, d_k_, d_v_;
  Scratch<T> scratch_;
  T* keys_;
  T* values_;
  T* queries_;
  T* p_;
  T* d_scores_;
  T* delta_;
};

// One task per (sequence, head).
template <class Task, class Args>
void run_tasks(const Args& args) {
  const int32_t* offsets = args.offsets.template row<int32_t>();
  const int64_t sequences = args.offsets.rows() - 1;
  thread_pool().run(sequences * args.heads, [&](int64_t index) {
    const int64_t first = offsets[index / args.heads];
    const int64_t length = offsets[index / args.heads + 1] - first;
    if (length > 0) Task(args, first, length, index % args.heads).run();
  });
}

// What both directions share; returns the number of tokens.
template <class Args>
int64_t require_attention(const Args& args) {
  require_rank(args.q, 2, "q");
  const DType dtype = args.q.dtype;
  const int64_t tokens = args.q.rows();
  const int64_t hidden = args.q.columns();
  require_matrix(args.q, dtype, tokens, hidden, "q");
  require_matrix(args.k, dtype, tokens, hidden, "k");
  require_matrix(args.v, dtype, tokens, hidden, "v");
  require_matrix(args.out, dtype, tokens, hidden, "out");
  TERCET_REQUIRE(args.heads >= 1 && hidden % args.heads == 0, "{} heads of a hidden size of {}", args.heads, hidden);
  require_offsets(args.offsets, tokens);
  return tokens;
}

void attention_forward_cpu(Stream&, const AttentionForwardArgs& args) {
  const int64_t tokens = require_attention(args);
  if (args.log_sum_exp.defined())
    require_matrix(args.log_sum_exp, statistics_dtype(args.q.dtype), tokens, args.heads, "log_sum_exp");
  dispatch_floating(args.q.dtype, [&]<class T>() { run_tasks<ForwardTask<T>>(args); });
}

void attention_backward_cpu(Stream&, const AttentionBackwardArgs& args) {
  const int64_t tokens = require_attention(args);
  const DType dtype = args.q.dtype;
  require_matrix(args.log_sum_exp, statistics_dtype(dtype), tokens, args.heads, "log_sum_exp");
  require_matrix(args.d_out, dtype, tokens, args.q.columns(), "d_out");
  require_matrix(args.d_q, dtype, tokens, args.q.columns(), "d_q");
  require_matrix(args.d_k, dtype, tokens, args.q.columns(), "d_k");
  require_matrix(args.d_v, dtype, tokens, args.q.columns(), "d_v");
  dispatch_floating(dtype, [&]<class T>() { run_tasks<BackwardTask<T>>(args); });
}

}  // namespace

const Op<AttentionForwardArgs> attention_forward{"attention_forward", attention_forward_cpu};
const Op<AttentionBackwardArgs> attention_backward{"attention_backward", attention_backward_cpu};

}  // namespace tercet
