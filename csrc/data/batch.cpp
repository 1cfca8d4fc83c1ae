#include "data/batch.h"

#include <fmt/format.h>

#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/rng.h"

namespace tercet {

void RaggedBatch::append(std::span<const int32_t> ids, uint64_t sample) {
  const auto end = narrow<int32_t>(tokens.size() + ids.size());
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  offsets.push_back(end);
  positions.resize(tokens.size());
  std::iota(positions.end() - static_cast<std::ptrdiff_t>(ids.size()), positions.end(), 0);
  samples.resize(tokens.size(), narrow<int64_t>(sample));
}

void RaggedBatch::append_idle(int64_t count) {
  const auto more = static_cast<size_t>(count);
  tokens.insert(tokens.end(), more, 0);
  positions.insert(positions.end(), more, 0);
  samples.insert(samples.end(), more, 0);
  offsets.insert(offsets.end(), more, offsets.back());
}

void RaggedBatch::clear() {
  tokens.clear();
  offsets.assign(1, 0);
  positions.clear();
  samples.clear();
}

std::vector<int64_t> epoch_order(int64_t n, uint64_t seed, uint64_t epoch) {
  TERCET_REQUIRE(n >= 0, "{} items have no order", n);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  const RandomStream random(seed, RandomPurpose::shuffle, epoch);
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i, i)]);
  return order;
}

std::vector<std::pair<int64_t, int64_t>> cut_micro_batches(std::span<const int64_t> token_counts, int64_t max_tokens,
                                                           int64_t max_sequences) {
  TERCET_REQUIRE(max_tokens >= 1 && max_sequences >= 1, "micro-batches of {} tokens and {} sequences", max_tokens,
                 max_sequences);
  std::vector<std::pair<int64_t, int64_t>> cuts;
  int64_t begin = 0;
  int64_t tokens = 0;
  const auto count = static_cast<int64_t>(token_counts.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t next = token_counts[static_cast<size_t>(i)];
    if (next > max_tokens)
      fail_input(fmt::format("a sequence of {} tokens does not fit a micro-batch of {}", next, max_tokens),
                 "--micro-batch-tokens", fmt::format("raise it to at least {}, or lower --max-length", next));
    if (i > begin && (tokens + next > max_tokens || i - begin == max_sequences)) {
      cuts.emplace_back(begin, i);
      begin = i;
      tokens = 0;
    }
    tokens += next;
  }
  if (begin < count) cuts.emplace_back(begin, count);
  return cuts;
}

}  // namespace tercet
