// A step does not depend on how it was split or ordered, a sequence does not depend on its neighbours, and a run
// repeats itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "train/test_model.h"

namespace tercet::testing {
namespace {

struct Item {
  std::vector<int32_t> ids;
  int64_t prompt_length;
};

std::vector<Item> random_items(int64_t count, int64_t vocabulary) {
  const RandomStream random(12, RandomPurpose::test);
  std::vector<Item> items;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = 2 + static_cast<int64_t>(random.below(30, static_cast<uint64_t>(i)));
    Item item{{2},
              1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(length - 1), static_cast<uint64_t>(i), 1))};
    while (std::ssize(item.ids) < length)
      item.ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary), static_cast<uint64_t>(i),
                                                           static_cast<uint32_t>(item.ids.size() + 2))));
    items.push_back(item);
  }
  return items;
}

// The whole parameter vector after one optimiser step over the items in the given order, cut into micro-batches of at
// most max_tokens tokens.
std::vector<double> step(const GoldenModel& golden, DType dtype, const std::vector<Item>& items,
                         const std::vector<size_t>& order, int64_t max_tokens, int64_t chunk_rows) {
  TestModel model(golden.config, {.dtype = dtype, .tokens = 512, .chunk_rows = chunk_rows});
  golden.load(model);
  model.zero_gradients();
  std::vector<int64_t> counts;
  int64_t labelled = 0;
  for (const size_t i : order) {
    counts.push_back(std::ssize(items[i].ids));
    labelled += counts.back() - items[i].prompt_length;
  }
  for (const auto& [begin, end] : cut_micro_batches(counts, max_tokens, 512)) {
    RaggedBatch batch;
    std::vector<int64_t> from;
    for (int64_t k = begin; k < end; ++k) {
      const size_t i = order[static_cast<size_t>(k)];
      batch.append(items[i].ids, i);
      from.push_back(items[i].prompt_length);
    }
    // Dropout is on: its masks depend on sample and position, not on where a token lies in a batch.
    model.cross_entropy_part(batch, prediction_rows(batch, from), static_cast<double>(labelled),
                             {.rate = 0.1, .seed = 3, .step = 1});
  }
  std::vector<double> gradients;
  for (const std::string& name : model.tensor_names()) {
    const std::vector<double> gradient = model.gradient(name);
    gradients.insert(gradients.end(), gradient.begin(), gradient.end());
  }
  return gradients;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

}  // namespace

TEST_CASE("one step has one gradient however it is split and ordered") {
  for (const std::string& name : golden_model_names()) {
    const GoldenModel golden(name);
    const std::vector<Item> items = random_items(14, golden.config.vocab_size);
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (const DType dtype : {DType::f64, DType::f32}) {
      // Another order of sums only: a few thousand terms round to about 1e-14 in fp64 and 1e-6 in fp32.
      const double limit = dtype == DType::f64 ? 1e-12 : 2e-6;
      const std::vector<double> whole = step(golden, dtype, items, order, 512, 512);
      for (const int64_t max_tokens : {31, 40, 77, 150})
        CHECK(relative_difference(step(golden, dtype, items, order, max_tokens, 512), whole) < limit);
      for (const int64_t chunk_rows : {1, 10})
        CHECK(relative_difference(step(golden, dtype, items, order, 512, chunk_rows), whole) < limit);
      for (uint64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<size_t> shuffled;
        for (const int64_t i : epoch_order(std::ssize(items), 5, epoch)) shuffled.push_back(static_cast<size_t>(i));
        CHECK(relative_difference(step(golden, dtype, items, shuffled, 77, 10), whole) < limit);
      }
    }
  }
}

TEST_CASE("a sequence has the same log-probabilities alone and in a batch") {
  for (const std::string& name : golden_model_names()) {
    const GoldenModel golden(name);
    const std::vector<Item> items = random_items(9, golden.config.vocab_size);
    TestModel model(golden.config, {.dtype = DType::f32, .tokens = 512});
    golden.load(model);
    RaggedBatch all;
    for (const Item& item : items) all.append(item.ids, 0);
    const std::vector<double> together =
        model->log_probs(all, prediction_rows(all, std::vector<int64_t>(items.size(), 1))).log_probs;
    size_t next = 0;
    for (const Item& item : items) {
      RaggedBatch alone;
      alone.append(item.ids, 0);
      for (const double log_prob : model->log_probs(alone, prediction_rows(alone, std::vector<int64_t>{1})).log_probs)
        CHECK(std::fabs(log_prob - together[next++]) < 1e-5);
    }
    CHECK(next == together.size());
  }
}

TEST_CASE("gradients have equal bits for 1, 2 and 3 threads") {
  const GoldenModel golden("pre_ln");
  const std::vector<Item> items = random_items(14, golden.config.vocab_size);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    set_threads(threads);
    results.push_back(step(golden, DType::f32, items, order, 150, 64));
  }
  set_threads(available_cores());
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("recomputation gives the bits of the plain backward pass") {
  for (const std::string& name : golden_model_names()) {
    const GoldenModel golden(name);
    std::vector<int64_t> from;
    const RaggedBatch batch = golden.batch(from);
    std::vector<std::vector<double>> gradients;
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      TestModel model(golden.config, {.dtype = DType::f32, .recompute = recompute});
      golden.load(model);
      model.zero_gradients();
      model.cross_entropy(batch, from, {.rate = 0.1, .seed = 3, .step = 1});
      auto& all = gradients.emplace_back();
      for (const std::string& tensor : model.tensor_names()) {
        const std::vector<double> gradient = model.gradient(tensor);
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
    }
    CHECK(gradients[0] == gradients[1]);
  }
}

TEST_CASE("an empty batch and a batch of one token are legal") {
  const GoldenModel golden("post_ln");
  TestModel model(golden.config);
  golden.load(model);
  const RaggedBatch empty;
  CHECK(model->log_probs(empty, {}).log_probs.empty());
  RaggedBatch one;
  one.append(std::vector<int32_t>{2}, 0);
  CHECK(model->log_probs(one, prediction_rows(one, std::vector<int64_t>{1})).log_probs.empty());
  CHECK(std::isfinite(model->log_probs(one, {.rows = {0}, .targets = {5}}).log_probs.at(0)));
}

TEST_CASE("a batch beyond the planned capacity is refused and not cut") {
  const GoldenModel golden("pre_ln");
  TestModel model(golden.config, {.tokens = 8});
  RaggedBatch batch;
  batch.append(std::vector<int32_t>(9, 5), 0);
  CHECK_THROWS_WITH(model->log_probs(batch, {}), doctest::Contains("exceeds the planned 8 tokens"));
}

}  // namespace tercet::testing
