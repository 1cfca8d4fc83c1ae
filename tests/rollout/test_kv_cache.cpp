#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "rollout/kv_cache.h"
#include "rollout/small_model.h"

namespace tercet::testing {
namespace {

TEST_CASE("the block allocator gives each block once, takes blocks back and refuses what is wrong") {
  BlockAllocator allocator(3);
  CHECK(allocator.free_blocks() == 3);
  std::set<int32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(allocator.allocate());
  CHECK(blocks == std::set<int32_t>{0, 1, 2});
  CHECK_THROWS_AS(allocator.allocate(), Error);
  allocator.release(1);
  CHECK(allocator.free_blocks() == 1);
  CHECK_THROWS_AS(allocator.release(1), Error);
  CHECK_THROWS_AS(allocator.release(3), Error);
  CHECK_THROWS_AS(allocator.release(-1), Error);
  CHECK(allocator.allocate() == 1);
}

KvCacheOptions cache_options(DType dtype) { return {"test", dtype, 3, 100, Phase::rollout, Phase::rollout}; }

TEST_CASE("a slot of the KV cache holds ceil(tokens / 32) blocks from reserve to release") {
  const OptConfig config = small_config("pre-LN");
  const KvCacheOptions options = cache_options(DType::f32);
  SmallModel model(config, DType::f32, KvCache::footprint(config, options));
  KvCache cache(config, options, model.arena());
  CHECK(cache.free_blocks() == 12);
  cache.reserve(0, 32);
  CHECK(cache.free_blocks() == 11);
  cache.reserve(2, 33);
  CHECK(cache.free_blocks() == 9);
  CHECK_THROWS_AS(cache.reserve(2, 1), Error);
  CHECK_THROWS_AS(cache.reserve(1, 101), Error);
  CHECK_THROWS_AS(cache.reserve(1, 0), Error);
  cache.reserve(1, 100);
  CHECK(cache.free_blocks() == 5);
  cache.release(2);
  cache.release(2);
  CHECK(cache.free_blocks() == 7);
  cache.release_all();
  CHECK(cache.free_blocks() == 12);
  model.arena().require_all_taken();
}

// The largest difference between logits with and without the cache. Three sequences of 70, 33 and 100 tokens are fed
// in pieces, so that prompts and single tokens share forwards, and the slots of two of them are used before.
double largest_cache_error(const OptConfig& config, DType dtype) {
  const KvCacheOptions options = cache_options(dtype);
  const BatchCapacity capacity{128, 3};
  const ActivationOptions activation_options{.prefix = "cached", .dtype = dtype, .capacity = capacity};
  std::vector<Slot> slots = KvCache::footprint(config, options);
  const auto append = [&](const std::vector<Slot>& more) { slots.insert(slots.end(), more.begin(), more.end()); };
  append(Activations::footprint(config, activation_options));
  append(DeviceBatch::footprint("new_tokens", capacity, Phase::rollout, Phase::save));
  SmallModel model(config, dtype, slots);
  KvCache cache(config, options, model.arena());
  Activations activations(config, activation_options, model.arena());
  DeviceBatch device_batch("new_tokens", capacity, model.arena());

  const std::vector<std::vector<int32_t>> sequences = {random_prompt(70, 1, config.vocab_size),
                                                       random_prompt(33, 2, config.vocab_size),
                                                       random_prompt(100, 3, config.vocab_size)};
  const std::vector<std::vector<int64_t>> pieces = {{5, 30, 1, 1, 33}, {1, 1, 1, 29, 1}, {64, 1, 31, 2, 1, 1}};
  cache.reserve(1, 100);
  cache.reserve(0, 40);
  cache.release_all();
  const std::vector<int64_t> slot_of = {2, 0, 1};
  for (size_t s = 0; s < sequences.size(); ++s) cache.reserve(slot_of[s], std::ssize(sequences[s]));

  double error = 0;
  std::vector<int64_t> cached(3, 0);
  const auto vocabulary = static_cast<size_t>(config.vocab_size);
  for (size_t round = 0; round < 6; ++round) {
    RaggedBatch batch;
    std::vector<KvCache::Row> rows;
    std::vector<double> expected;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (round >= pieces[s].size()) continue;
      const auto all = std::span(sequences[s]);
      const auto first = static_cast<size_t>(cached[s]);
      const auto count = static_cast<size_t>(pieces[s][round]);
      batch.append(all.subspan(first, count), 0);
      std::iota(batch.positions.end() - static_cast<std::ptrdiff_t>(count), batch.positions.end(),
                static_cast<int32_t>(first));
      rows.push_back({slot_of[s], cached[s]});
      RaggedBatch whole;
      whole.append(all.first(first + count), 0);
      const auto logits = model.logits(whole);
      expected.insert(expected.end(), logits.begin() + static_cast<std::ptrdiff_t>(first * vocabulary), logits.end());
      cached[s] += pieces[s][round];
    }
    device_batch.upload(model.stream(), batch);
    model.model().forward(model.stream(), device_batch, activations, {}, &cache.upload(model.stream(), rows));
    std::vector<int32_t> all_rows(static_cast<size_t>(batch.token_count()));
    std::iota(all_rows.begin(), all_rows.end(), 0);
    const auto logits = model.logits_of(activations.output(), all_rows);
    REQUIRE(logits.size() == expected.size());
    for (size_t i = 0; i < logits.size(); ++i) error = std::max(error, std::abs(logits[i] - expected[i]));
  }
  for (size_t s = 0; s < sequences.size(); ++s) REQUIRE(cached[s] == std::ssize(sequences[s]));
  return error;
}

TEST_CASE("logits with the cache equal those of a whole forward at every position") {
  for (const std::string& shape : small_shapes()) {
    CAPTURE(shape);
    const double error64 = largest_cache_error(small_config(shape), DType::f64);
    const double error32 = largest_cache_error(small_config(shape), DType::f32);
    // Sums in another order: some hundred roundings of values of order 1. Measured 3e-15 and 1.6e-6.
    CHECK(error64 <= 1e-10);
    CHECK(error32 <= 1e-5);
  }
}

}  // namespace
}  // namespace tercet::testing
