#include "kernels/paged_attention.h"

#include <cmath>
#include <limits>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Queries of one tile, when a slot has several new tokens.
constexpr int64_t kQueryTile = 64;

// The cached tokens of the slots: which slot has how many, and where they lie.
struct Slots {
  const int32_t* offsets;
  const int32_t* lengths;
  const int32_t* block_table;
  int64_t table_pitch;
  int64_t count;

  int64_t first(int64_t slot) const { return offsets[slot]; }
  int64_t new_tokens(int64_t slot) const { return offsets[slot + 1] - offsets[slot]; }
  int64_t block(int64_t slot, int64_t index) const { return block_table[slot * table_pitch + index]; }
};

template <class Args>
Slots require_slots(const Args& args, const Tensor& tokens, const char* name) {
  require_rank(tokens, 2, name);
  require_rank(args.k_cache, 3, "k_cache");
  require_rank(args.block_table, 2, "block_table");
  const DType dtype = tokens.dtype;
  const int64_t blocks = args.k_cache.shape[0];
  for (const auto& [cache, cache_name] : {std::pair{&args.k_cache, "k_cache"}, std::pair{&args.v_cache, "v_cache"}}) {
    require_shape(*cache, dtype, {blocks, kKvBlockTokens, tokens.columns()}, cache_name);
    TERCET_REQUIRE(cache->contiguous(), "{} is not contiguous", cache_name);
  }
  require_offsets(args.offsets, tokens.rows());
  const int64_t slots = args.offsets.rows() - 1;
  require_vector(args.lengths, DType::i32, slots, "lengths");
  require_matrix(args.block_table, DType::i32, slots, args.block_table.columns(), "block_table");
  const Slots result{args.offsets.template row<int32_t>(), args.lengths.template row<int32_t>(),
                     args.block_table.template row<int32_t>(), args.block_table.pitch, slots};
  for (int64_t s = 0; s < slots; ++s) {
    if (result.new_tokens(s) == 0) continue;
    const int64_t used = ceil_div(result.lengths[s] + result.new_tokens(s), kKvBlockTokens);
    TERCET_REQUIRE(result.lengths[s] >= 0 && used <= args.block_table.columns(),
                   "slot {} has {} cached and {} new tokens, its table holds {}", s, result.lengths[s],
                   result.new_tokens(s), args.block_table.columns() * kKvBlockTokens);
    for (int64_t b = 0; b < used; ++b)
      TERCET_REQUIRE(result.block(s, b) >= 0 && result.block(s, b) < blocks,
                     "block {} of slot {} is {}, the cache has {}", b, s, result.block(s, b), blocks);
  }
  return result;
}

void kv_cache_append_cpu(Stream&, const KvCacheAppendArgs& args) {
  const Slots slots = require_slots(args, args.k, "k");
  require_matrix(args.k, args.k.dtype, args.k.rows(), args.k.columns(), "k");
  require_matrix(args.v, args.k.dtype, args.k.rows(), args.k.columns(), "v");
  dispatch_floating(args.k.dtype, [&]<class T>() {
    const int64_t hidden = args.k.columns();
    const Rows<T> k = rows_of<T>(args.k);
    const Rows<T> v = rows_of<T>(args.v);
    T* k_cache = args.k_cache.row<T>();
    T* v_cache = args.v_cache.row<T>();
    for (int64_t s = 0; s < slots.count; ++s)
      for (int64_t i = 0; i < slots.new_tokens(s); ++i) {
        const int64_t position = slots.lengths[s] + i;
        const int64_t row = slots.block(s, position / kKvBlockTokens) * kKvBlockTokens + position % kKvBlockTokens;
        std::copy_n(k[slots.first(s) + i], hidden, k_cache + row * hidden);
        std::copy_n(v[slots.first(s) + i], hidden, v_cache + row * hidden);
      }
  });
}

// Attention of one head of one slot.
template <class T>
class Task {
 public:
  Task(const PagedAttentionArgs& args, const Slots& slots, int64_t slot, int64_t head)
      : slots_(slots),
        slot_(slot),
        hidden_(args.q.columns()),
        head_size_(hidden_ / args.heads),
        scale_(static_cast<T>(args.scale)),
        k_cache_(args.k_cache.row<T>() + head * head_size_),
        v_cache_(args.v_cache.row<T>() + head * head_size_) {
    const Rows<T> q = rows_of<T>(args.q);
    const Rows<T> out = rows_of<T>(args.out);
    q_ = {q[slots.first(slot)] + head * head_size_, q.pitch};
    out_ = {out[slots.first(slot)] + head * head_size_, out.pitch};
  }

  void run() {
    const int64_t queries = slots_.new_tokens(slot_);
    if (queries == 1) return run_single();
    for (int64_t query = 0; query < queries; query += kQueryTile)
      run_tile(query, std::min(kQueryTile, queries - query));
  }

 private:
  const T* key_block(int64_t index) const { return k_cache_ + slots_.block(slot_, index) * kKvBlockTokens * hidden_; }
  const T* value_block(int64_t index) const { return v_cache_ + slots_.block(slot_, index) * kKvBlockTokens * hidden_; }

  static T* scratch(int slot, int64_t elements) {
    return static_cast<T*>(thread_scratch(slot, sizeof(T) * static_cast<size_t>(elements)));
  }

  // One query: dot products with the rows of the cache, one softmax over all of them.
  void run_single() {
    const int64_t visible = slots_.lengths[slot_] + 1;
    const int64_t blocks = ceil_div(visible, kKvBlockTokens);
    T* query = scratch(1, head_size_);
    T* scores = scratch(2, blocks * kKvBlockTokens);
    ops_.scale_rows(query, head_size_, scale_, q_[0], q_.pitch, 1, head_size_);
    for (int64_t b = 0; b < blocks; ++b)
      ops_.gemm_transposed(1, std::min(kKvBlockTokens, visible - b * kKvBlockTokens), head_size_, query, head_size_,
                           key_block(b), hidden_, scores + b * kKvBlockTokens, 0);
    T max = -std::numeric_limits<T>::infinity();
    T sum = 0;
    T factor = 0;
    ops_.online_softmax(scores, 0, 1, visible, blocks * kKvBlockTokens, &max, &sum, &factor);
    std::fill_n(out_[0], head_size_, T{0});
    for (int64_t b = 0; b < blocks; ++b)
      ops_.gemm_add(1, head_size_, std::min(kKvBlockTokens, visible - b * kKvBlockTokens), scores + b * kKvBlockTokens,
                    0, 1, value_block(b), hidden_, out_[0], out_.pitch);
    ops_.scale(out_[0], 1 / sum, head_size_);
  }

  void run_tile(int64_t first_query, int64_t rows) {
    T* queries = scratch(1, kQueryTile * (head_size_ + kKvBlockTokens));
    T* scores = queries + kQueryTile * head_size_;
    T* keys = scratch(2, head_size_ * kKvBlockTokens);
    T max[kQueryTile];
    T sum[kQueryTile] = {};
    T factor[kQueryTile];
    std::fill_n(max, kQueryTile, -std::numeric_limits<T>::infinity());
    ops_.scale_rows(queries, head_size_, scale_, q_[first_query], q_.pitch, rows, head_size_);
    for (int64_t i = 0; i < rows; ++i) std::fill_n(out_[first_query + i], head_size_, T{0});
    const int64_t total = slots_.lengths[slot_] + first_query + rows;
    for (int64_t key = 0; key < total; key += kKvBlockTokens) {
      const int64_t count = std::min(kKvBlockTokens, total - key);
      std::fill_n(keys, head_size_ * kKvBlockTokens, T{0});
      ops_.transpose(count, head_size_, key_block(key / kKvBlockTokens), hidden_, keys, kKvBlockTokens);
      ops_.gemm(rows, kKvBlockTokens, head_size_, queries, head_size_, 1, keys, kKvBlockTokens, scores, kKvBlockTokens);
      ops_.online_softmax(scores, kKvBlockTokens, rows, slots_.lengths[slot_] + first_query - key + 1, kKvBlockTokens,
                          max, sum, factor);
      for (int64_t i = 0; i < rows; ++i)
        if (factor[i] != 1) ops_.scale(out_[first_query + i], factor[i], head_size_);
      ops_.gemm_add(rows, head_size_, count, scores, kKvBlockTokens, 1, value_block(key / kKvBlockTokens), hidden_,
                    out_[first_query], out_.pitch);
    }
    for (int64_t i = 0; i < rows; ++i) ops_.scale(out_[first_query + i], 1 / sum[i], head_size_);
  }

  const RowOps<T>& ops_ = row_ops<T>();
  const Slots& slots_;
  int64_t slot_;
  int64_t hidden_;
  int64_t head_size_;
  T scale_;
  const T* k_cache_;
  const T* v_cache_;
  Rows<T> q_, out_;
};

void paged_attention_cpu(Stream&, const PagedAttentionArgs& args) {
  const Slots slots = require_slots(args, args.q, "q");
  const int64_t hidden = args.q.columns();
  require_matrix(args.q, args.q.dtype, args.q.rows(), hidden, "q");
  require_matrix(args.out, args.q.dtype, args.q.rows(), hidden, "out");
  TERCET_REQUIRE(args.heads >= 1 && hidden % args.heads == 0, "{} heads of a hidden size of {}", args.heads, hidden);
  dispatch_floating(args.q.dtype, [&]<class T>() {
    thread_pool().run(slots.count * args.heads, [&](int64_t index) {
      const int64_t slot = index / args.heads;
      if (slots.new_tokens(slot) > 0) Task<T>(args, slots, slot, index % args.heads).run();
    });
  });
}

}  // namespace

const Op<KvCacheAppendArgs> kv_cache_append{"kv_cache_append", kv_cache_append_cpu};
const Op<PagedAttentionArgs> paged_attention{"paged_attention", paged_attention_cpu};

}  // namespace tercet
