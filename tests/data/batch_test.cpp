#include "data/batch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "data/data_files.h"

using namespace tercet;
using namespace tercet::testing;

namespace {

using Cuts = std::vector<std::pair<int64_t, int64_t>>;

Cuts cut(const std::vector<int64_t>& counts, int64_t max_tokens, int64_t max_sequences) {
  return cut_micro_batches(counts, max_tokens, max_sequences);
}

}  // namespace

TEST_CASE("a ragged batch holds sequences one after another, positions from 0 in each") {
  RaggedBatch batch;
  CHECK(batch.sequences() == 0);
  CHECK(batch.token_count() == 0);
  CHECK(batch.offsets == std::vector<int32_t>{0});
  batch.append(std::vector<int32_t>{2, 7, 8}, 40);
  batch.append(std::vector<int32_t>{}, 41);
  batch.append(std::vector<int32_t>{2, 9}, 42);
  CHECK(batch.sequences() == 3);
  CHECK(batch.token_count() == 5);
  CHECK(batch.tokens == std::vector<int32_t>{2, 7, 8, 2, 9});
  CHECK(batch.offsets == std::vector<int32_t>{0, 3, 3, 5});
  CHECK(batch.positions == std::vector<int32_t>{0, 1, 2, 0, 1});
  CHECK(batch.samples == std::vector<int64_t>{40, 40, 40, 42, 42});
  batch.clear();
  CHECK(batch.sequences() == 0);
  batch.append(std::vector<int32_t>{5}, 1);
  CHECK(batch.offsets == std::vector<int32_t>{0, 1});
  CHECK(batch.positions == std::vector<int32_t>{0});
}

TEST_CASE("the order of an epoch is a permutation that depends on seed and epoch only") {
  const std::vector<int64_t> order = epoch_order(1000, 5, 0);
  CHECK(order == epoch_order(1000, 5, 0));
  CHECK(order != epoch_order(1000, 5, 1));
  CHECK(order != epoch_order(1000, 6, 0));
  CHECK(std::set<int64_t>(order.begin(), order.end()).size() == 1000);
  CHECK(*std::max_element(order.begin(), order.end()) == 999);
  CHECK(epoch_order(0, 5, 0).empty());
  CHECK(epoch_order(1, 5, 0) == std::vector<int64_t>{0});
}

TEST_CASE("every item comes to every place equally often") {
  constexpr int items = 5;
  constexpr int epochs = 20000;
  std::vector<std::vector<int>> counts(items, std::vector<int>(items, 0));
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const std::vector<int64_t> order = epoch_order(items, 1, epoch);
    for (size_t place = 0; place < items; ++place) ++counts[place][static_cast<size_t>(order[place])];
  }
  // Binomial counts of mean 4000 and standard deviation 57: five of them bound all 25 with a chance of 1e-5 to fail.
  for (const auto& row : counts)
    for (const int count : row) CHECK(std::abs(count - epochs / items) < 5 * 57);
}

TEST_CASE("micro-batches are filled in order up to the limits on tokens and sequences") {
  CHECK(cut({}, 10, 10).empty());
  CHECK(cut({3, 3, 4, 1}, 10, 10) == Cuts{{0, 3}, {3, 4}});
  CHECK(cut({10, 10}, 10, 10) == Cuts{{0, 1}, {1, 2}});
  CHECK(cut({1, 1, 1, 1, 1}, 10, 2) == Cuts{{0, 2}, {2, 4}, {4, 5}});
  CHECK(cut({0, 0, 10, 0}, 10, 10) == Cuts{{0, 4}});
  CHECK(cut({6, 5, 5, 6}, 10, 10) == Cuts{{0, 1}, {1, 3}, {3, 4}});
}

TEST_CASE("an item beyond the capacity of a micro-batch is an error that names the flag") {
  CHECK(DataFolder().input_error([] {
    cut({3, 12}, 10, 10);
  }) == "--micro-batch-tokens: a sequence of 12 tokens does not fit a micro-batch of 10; raise it to at least 12, or "
        "lower "
        "--max-length");
  CHECK_THROWS(cut({1}, 0, 1));
  CHECK_THROWS(cut({1}, 1, 0));
}
