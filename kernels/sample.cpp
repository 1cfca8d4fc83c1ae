#include "kernels/sample.h"

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Tokens that get their random numbers together, while their words stay in the nearest cache.
constexpr int64_t kChunk = 1024;
// Tokens that top-p sorts first; four times as many each time they do not reach the probability.
constexpr int64_t kFirstSorted = 64;

// Which tokens a row may give: those above `limit`, and the first `ties` of those equal to it.
template <class T>
struct Kept {
  T limit = -std::numeric_limits<T>::infinity();
  int64_t ties = std::numeric_limits<int64_t>::max();
};

// The k largest of `values`, which are reordered.
template <class T>
Kept<T> keep_top_k(T* values, int64_t count, int64_t k) {
  std::nth_element(values, values + (k - 1), values + count, std::greater<T>());
  const T limit = values[k - 1];
  return {limit, k - std::count_if(values, values + k, [limit](T value) { return value > limit; })};
}

// The smallest set of the largest of `values` (reordered) whose softmax reaches `top_p`; `scale` is 1 / temperature.
template <class T>
Kept<T> keep_top_p(T* values, int64_t count, double top_p, double scale) {
  const double max = double{*std::max_element(values, values + count)};
  const auto weight = [&](T value) { return std::exp((double{value} - max) * scale); };
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += weight(values[i]);
  double reached = 0;
  int64_t sorted = 0;
  for (int64_t next = kFirstSorted; sorted < count; next *= 4) {
    const int64_t end = std::min(next, count);
    std::partial_sort(values + sorted, values + end, values + count, std::greater<T>());
    for (; sorted < end; ++sorted) {
      reached += weight(values[sorted]);
      if (reached < top_p * total) continue;
      const T limit = values[sorted];
      return {limit, sorted + 1 - std::count_if(values, values + sorted, [limit](T value) { return value > limit; })};
    }
  }
  return {};
}

template <class T>
Kept<T> select_tokens(const SampleArgs& args, const T* logits, int64_t vocabulary, T* scratch) {
  Kept<T> kept;
  if (scratch == nullptr || std::any_of(logits, logits + vocabulary, [](T z) { return std::isnan(z); })) return kept;
  std::copy_n(logits, vocabulary, scratch);
  int64_t count = vocabulary;
  if (args.top_k > 0 && args.top_k < vocabulary) {
    kept = keep_top_k(scratch, vocabulary, args.top_k);
    count = args.top_k;
  }
  if (args.top_p < 1) {
    const Kept<T> nucleus = keep_top_p(scratch, count, args.top_p, 1 / args.temperature);
    kept = nucleus.limit > kept.limit ? nucleus : Kept<T>{kept.limit, std::min(kept.ties, nucleus.ties)};
  }
  return kept;
}

// Turns the tokens of a chunk that are not kept into -infinity.
template <class T>
void drop_tokens(const T* logits, int64_t count, Kept<T>& kept, T* z) {
  for (int64_t j = 0; j < count; ++j) {
    if (logits[j] > kept.limit) continue;
    if (logits[j] == kept.limit && kept.ties > 0)
      --kept.ties;
    else
      z[j] = -std::numeric_limits<T>::infinity();
  }
}

// The index of the largest z_j + Gumbel noise among the tokens kept.
template <class T>
int64_t draw(const SampleArgs& args, int64_t row, const T* logits, int64_t vocabulary, Kept<T> kept) {
  auto* bits = static_cast<uint32_t*>(thread_scratch(1, sizeof(uint32_t) * kChunk));
  T* z = static_cast<T*>(thread_scratch(2, sizeof(T) * kChunk));
  const auto sample_number = static_cast<uint64_t>(args.samples.row<int64_t>()[row]);
  const auto position = static_cast<uint32_t>(args.positions.row<int32_t>()[row]);
  const bool all = kept.limit == -std::numeric_limits<T>::infinity();
  int64_t best = 0;
  T best_value = -std::numeric_limits<T>::infinity();
  for (int64_t first = 0; first < vocabulary; first += kChunk) {
    const int64_t count = std::min(kChunk, vocabulary - first);
    simd_ops().random_bits(args.key, sample_number, position, static_cast<uint32_t>(first / 4),
                           ceil_div<int64_t>(count, 4), bits);
    row_ops<T>().gumbel(z, logits + first, static_cast<T>(1 / args.temperature), bits, count);
    if (!all) drop_tokens(logits + first, count, kept, z);
    const int64_t candidate = row_ops<T>().argmax(z, count);
    if (z[candidate] > best_value) {
      best_value = z[candidate];
      best = first + candidate;
    }
  }
  return best;
}

template <class T>
T log_probability(const T* logits, int64_t vocabulary, int64_t id, double temperature) {
  const T scale = static_cast<T>(1 / temperature);
  const T shift = row_ops<T>().max(logits, vocabulary) * scale;
  double sums[2];
  row_ops<T>().exp_sums(logits, scale, shift, vocabulary, sums);
  return static_cast<T>(double{logits[id]} * scale - shift - std::log(sums[0]));
}

template <class T>
void sample_rows(const SampleArgs& args) {
  const Rows<T> logits = rows_of<T>(args.logits);
  const Rows<T> scratch = rows_of<T>(args.scratch);
  const int64_t vocabulary = args.logits.columns();
  const bool greedy = args.temperature == 0;
  parallel_rows(args.logits.rows(), vocabulary, [&](int64_t first, int64_t end) {
    for (int64_t s = first; s < end; ++s) {
      const T* row = logits[s];
      int64_t id = 0;
      if (greedy)
        id = row_ops<T>().argmax(row, vocabulary);
      else
        id = draw(args, s, row, vocabulary, select_tokens(args, row, vocabulary, scratch ? scratch[s] : nullptr));
      args.ids.row<int32_t>()[s] = static_cast<int32_t>(id);
      args.log_prob.row<T>()[s] = log_probability(row, vocabulary, id, greedy ? 1 : args.temperature);
    }
  });
}

void sample_cpu(Stream&, const SampleArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const int64_t rows = args.logits.rows();
  const int64_t vocabulary = args.logits.columns();
  require_matrix(args.logits, dtype, rows, vocabulary, "logits");
  require_vector(args.samples, DType::i64, rows, "samples");
  require_vector(args.positions, DType::i32, rows, "positions");
  require_vector(args.ids, DType::i32, rows, "ids");
  require_vector(args.log_prob, statistics_dtype(dtype), rows, "log_prob");
  const bool restricted = args.top_k > 0 || args.top_p < 1;
  TERCET_REQUIRE(args.scratch.defined() == restricted, "scratch goes with top_k and top_p");
  if (restricted) require_matrix(args.scratch, dtype, rows, vocabulary, "scratch");
  TERCET_REQUIRE(args.temperature >= 0, "a temperature of {}", args.temperature);
  TERCET_REQUIRE(args.top_k >= 0, "a top-k of {}", args.top_k);
  TERCET_REQUIRE(args.top_p > 0 && args.top_p <= 1, "a top-p of {}", args.top_p);
  TERCET_REQUIRE(rows == 0 || vocabulary > 0, "an empty vocabulary");
  dispatch_floating(dtype, [&]<class T>() { sample_rows<T>(args); });
}

}  // namespace

const Op<SampleArgs> sample{"sample", sample_cpu};

}  // namespace tercet
