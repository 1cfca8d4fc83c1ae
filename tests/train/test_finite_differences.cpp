// Every parameter tensor of the four golden models, both heads and every loss against central finite differences in
// fp64 along random directions. A direction has norm 1, so that the step is the same for every tensor; 1e-6 is relative
// to the norm of the tensor's gradient: truncation at step 1e-4 is about 1e-8 of it and rounding 1e-16 / 1e-4 = 1e-12.
#include <doctest/doctest.h>

#include <functional>

#include "base/rng.h"
#include "kernels/ppo.h"
#include "kernels/ranking_loss.h"
#include "train/test_model.h"

namespace tercet::testing {
namespace {

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-6;

// A loss of a model: the value, with gradients accumulated.
using ModelLoss = std::function<double(TestModel&)>;

Tensor host_view(std::vector<double>& values) {
  return Tensor(values.data(), DType::f64, DeviceKind::cpu, {static_cast<int64_t>(values.size())});
}

std::vector<double> random_values(size_t count, uint64_t site, double scale) {
  const RandomStream random(3, RandomPurpose::test, site);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = scale * random.normal(i);
  return values;
}

// Moves one tensor along a unit direction and compares the change of the loss with the gradient.
void check_tensor(TestModel& model, const ModelLoss& loss, const std::string& name, const std::vector<double>& gradient,
                  int directions) {
  const std::vector<double> start = model.weight(name);
  const double scale = norm(gradient);
  for (int d = 0; d < directions; ++d) {
    std::vector<double> direction = random_values(start.size(), 100 + static_cast<uint64_t>(d), 1);
    const double length = norm(direction);
    double expected = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] /= length;
      expected += direction[i] * gradient[i];
    }
    const auto loss_at = [&](double step) {
      std::vector<double> moved = start;
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
      model.set_weight(name, moved);
      return loss(model);
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    CAPTURE(name);
    CAPTURE(d);
    // A gradient that is exactly zero (k_proj.bias) leaves rounding: 1e-9 absolute.
    CHECK(std::fabs(slope - expected) < kTolerance * scale + 1e-9);
  }
  model.set_weight(name, start);
}

// `stride` > 1 checks every stride-th tensor with one direction (the quick tests).
void check_all_tensors(TestModel& model, const ModelLoss& loss, int directions, size_t stride) {
  model.zero_gradients();
  loss(model);
  std::vector<std::vector<double>> gradients;
  const std::vector<std::string> names = model.tensor_names();
  for (const std::string& name : names) gradients.push_back(model.gradient(name));
  for (size_t i = 0; i < names.size(); i += stride) check_tensor(model, loss, names[i], gradients[i], directions);
}

std::vector<int64_t> prompt_lengths_of(const GoldenModel& golden, RaggedBatch& batch) {
  std::vector<int64_t> lengths;
  batch = golden.batch(lengths);
  return lengths;
}

ModelLoss cross_entropy_loss(const GoldenModel& golden, double dropout_rate) {
  RaggedBatch batch;
  const std::vector<int64_t> from = prompt_lengths_of(golden, batch);
  return
      [=](TestModel& model) { return model.cross_entropy(batch, from, {.rate = dropout_rate, .seed = 4, .step = 2}); };
}

// PPO's policy loss with an entropy bonus at a temperature, away from the kinks: old log-probabilities are those of the
// start, moved by up to 0.1, so that ratios lie inside and outside the clip range of 0.05 but not at its edge.
ModelLoss policy_loss(const GoldenModel& golden, TestModel& start) {
  RaggedBatch batch;
  const std::vector<int64_t> from = prompt_lengths_of(golden, batch);
  const PredictionRows rows = prediction_rows(batch, from);
  constexpr double temperature = 0.7;
  std::vector<double> old = start->log_probs(batch, rows, temperature).log_probs;
  const std::vector<double> shift = random_values(old.size(), 7, 0.1);
  for (size_t i = 0; i < old.size(); ++i) {
    const double away = std::fabs(std::fabs(shift[i]) - 0.05) < 0.005 ? 0.02 : 0;  // off the clip's edge
    old[i] += shift[i] + away;
  }
  const std::vector<double> advantages = random_values(old.size(), 8, 1);
  return [=](TestModel& model) {
    std::vector<double> statistics(8);
    std::vector<double> deviation(1);
    const double scale = 1 / static_cast<double>(old.size());
    constexpr double entropy_coef = 0.3;
    model->accumulate_token_loss(
        batch, rows,
        [&](Stream& stream, const LmHead::Chunk& chunk) {
          std::vector<double> chunk_old(old.begin() + chunk.first, old.begin() + chunk.first + chunk.log_prob.rows());
          std::vector<double> chunk_advantages(advantages.begin() + chunk.first,
                                               advantages.begin() + chunk.first + chunk.log_prob.rows());
          ppo_policy_loss(stream, {.log_prob = chunk.log_prob,
                                   .old_log_prob = host_view(chunk_old),
                                   .advantages = host_view(chunk_advantages),
                                   .entropy = chunk.entropy,
                                   .d_log_prob = chunk.d_log_prob,
                                   .d_entropy = chunk.d_entropy,
                                   .statistics = host_view(statistics),
                                   .max_ratio_deviation = host_view(deviation),
                                   .clip_range = 0.05,
                                   .entropy_coef = entropy_coef,
                                   .scale = scale});
        },
        temperature, true);
    return scale * (statistics[0] - entropy_coef * statistics[7]);
  };
}

struct ScoreRows {
  RaggedBatch batch;
  std::vector<int32_t> all, last;
};

ScoreRows score_rows(const GoldenModel& golden) {
  ScoreRows result;
  for (const Json& pair : golden.golden.at("reward").at("pairs").as_array())
    for (const char* side : {"chosen", "rejected"}) {
      result.batch.append(token_ids(pair.at(side)), 0);
      result.last.push_back(result.batch.offsets.back() - 1);
    }
  for (int32_t row = 0; row < result.batch.token_count(); ++row) result.all.push_back(row);
  return result;
}

ModelLoss last_token_ranking_loss(const GoldenModel& golden) {
  const ScoreRows rows = score_rows(golden);
  return [=](TestModel& model) {
    std::vector<double> losses(rows.last.size() / 2);
    model->accumulate_score_loss(
        rows.batch, rows.last, [&](Stream& stream, const Tensor& scores, const Tensor& d_scores) {
          ranking_loss(stream, {.scores = scores, .loss = host_view(losses), .d_scores = d_scores});
        });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  };
}

ModelLoss per_token_ranking_loss(const GoldenModel& golden) {
  const ScoreRows rows = score_rows(golden);
  return [=](TestModel& model) {
    std::vector<double> losses(rows.last.size() / 2);
    std::vector<int32_t> offsets = rows.batch.offsets;
    std::vector<int32_t> differences(losses.size(), 2);
    model->accumulate_score_loss(
        rows.batch, rows.all, [&](Stream& stream, const Tensor& scores, const Tensor& d_scores) {
          token_ranking_loss(
              stream,
              {.scores = scores,
               .offsets = Tensor(offsets.data(), DType::i32, DeviceKind::cpu, {static_cast<int64_t>(offsets.size())}),
               .first_difference =
                   Tensor(differences.data(), DType::i32, DeviceKind::cpu, {static_cast<int64_t>(differences.size())}),
               .loss = host_view(losses),
               .d_scores = d_scores});
        });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  };
}

// PPO's value loss: old values and returns around the present scores, clip edges avoided as above.
ModelLoss value_loss(const GoldenModel& golden, TestModel& start) {
  const ScoreRows rows = score_rows(golden);
  const std::vector<double> scores = start->scores(rows.batch, rows.all);
  std::vector<double> old = scores;
  std::vector<double> returns = scores;
  const std::vector<double> shift = random_values(old.size(), 9, 0.3);
  const std::vector<double> target = random_values(old.size(), 10, 1);
  for (size_t i = 0; i < old.size(); ++i) {
    old[i] += shift[i] + (std::fabs(std::fabs(shift[i]) - 0.2) < 0.01 ? 0.05 : 0);
    returns[i] += target[i];
  }
  return [=](TestModel& model) {
    std::vector<double> old_copy = old;
    std::vector<double> returns_copy = returns;
    std::vector<double> statistics(4);
    model->accumulate_score_loss(rows.batch, rows.all,
                                 [&](Stream& stream, const Tensor& values, const Tensor& d_values) {
                                   ppo_value_loss(stream, {.values = values,
                                                           .old_values = host_view(old_copy),
                                                           .returns = host_view(returns_copy),
                                                           .d_values = d_values,
                                                           .statistics = host_view(statistics),
                                                           .clip_range = 0.2});
                                 });
    return statistics[0];
  };
}

void check_model(const std::string& name, int directions, size_t stride) {
  const GoldenModel golden(name);
  CAPTURE(name);
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    CAPTURE(static_cast<int>(recompute));
    TestModel language_model(golden.config, {.recompute = recompute});
    golden.load(language_model);
    check_all_tensors(language_model, cross_entropy_loss(golden, 0), directions, stride);
    check_all_tensors(language_model, cross_entropy_loss(golden, 0.25), directions, stride);
    check_all_tensors(language_model, policy_loss(golden, language_model), directions, stride);
    TestModel scalar_model(golden.config, {.head = Head::scalar, .recompute = recompute});
    golden.load(scalar_model);
    check_all_tensors(scalar_model, last_token_ranking_loss(golden), directions, stride);
    check_all_tensors(scalar_model, per_token_ranking_loss(golden), directions, stride);
    check_all_tensors(scalar_model, value_loss(golden, scalar_model), directions, stride);
  }
}

}  // namespace

TEST_CASE("gradients of a pre-norm model equal finite differences") { check_model("pre_ln", 1, 3); }
TEST_CASE("gradients of a post-norm model with projections equal finite differences") { check_model("post_ln", 1, 3); }
TEST_CASE("gradients of a GELU model without biases equal finite differences") { check_model("gelu", 1, 3); }
TEST_CASE("gradients of a model with head size 80 equal finite differences") { check_model("head80", 1, 3); }

TEST_CASE("long: every tensor of every golden model equals finite differences along 8 directions") {
  for (const std::string& name : golden_model_names()) check_model(name, 8, 1);
}

}  // namespace tercet::testing
