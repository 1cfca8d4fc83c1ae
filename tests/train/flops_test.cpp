// What ModelInstance counts.
#include "model/flops.h"

#include <doctest/doctest.h>

#include "train/test_model.h"

namespace tercet::testing {

TEST_CASE("a model counts the FLOP of its passes, those with a backward three times") {
  const GoldenModel golden("pre_ln");
  TestModel model(golden.config);
  golden.load(model);
  RaggedBatch batch;
  batch.append(std::vector<int32_t>{2, 5, 6, 7, 2}, 0);
  batch.append(std::vector<int32_t>{2, 8, 2}, 1);
  const std::vector<int64_t> lengths = {5, 3}, from = {2, 1};
  const PredictionRows rows = prediction_rows(batch, from);
  const double head = forward_flops(golden.config, Head::language_model, lengths, rows.count());
  const double body = forward_flops(golden.config, Head::language_model, lengths, 0);
  CHECK(rows.count() == 5);
  CHECK(model->flops() == 0);
  model->log_probs(batch, rows);
  CHECK(model->flops() == head);
  model->hidden_states(batch);
  CHECK(model->flops() == head + body);
  model->accumulate_cross_entropy(batch, rows, 0.2);
  CHECK(model->flops() == 4 * head + body);
}

}  // namespace tercet::testing
