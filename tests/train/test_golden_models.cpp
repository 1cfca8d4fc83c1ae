// Whole models against transformers and torch in float64 (tests/golden/README.md): logits, losses, every gradient, ten
// steps of AdamW, the reward head. The error of a tensor is |x - ref| / max(|ref|, 1e-3 |all gradients|): 1e-9 in fp64,
// there for each element too, leaves room for another order of sums only; 1e-5 in fp32 is about 100 roundings of 6e-8.
#include <doctest/doctest.h>

#include "kernels/ranking_loss.h"
#include "train/test_model.h"

namespace tercet::testing {
namespace {

double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-9 : 1e-5; }

bool is_key_bias(const std::string& name) { return name.ends_with("k_proj.bias"); }

// Norm of the golden values of one kind over all tensors, from golden.json.
double whole_norm(const Json& sums_and_norms) {
  double sum = 0;
  for (const auto& [name, value] : sums_and_norms.as_object()) sum += std::pow(value.as_array()[1].as_double(), 2);
  return std::sqrt(sum);
}

void check_gradients(TestModel& model, const GoldenModel& golden, const std::string& kind, const Json& norms,
                     double limit) {
  const double scale = whole_norm(norms);
  for (const std::string& name : model.tensor_names()) {
    CAPTURE(name);
    const std::vector<double> reference = golden.values.read_vector<double>(kind + "/" + name);
    const std::vector<double> gradient = strided(model.gradient(name), golden.stride(kind));
    // The true gradient of k_proj.bias is 0 (softmax ignores a shift): what is left in fp32 is rounding of 6e-8.
    if (is_key_bias(name) && model->options().dtype == DType::f32)
      CHECK(norm(gradient) < 1e-7 * scale);
    else
      CHECK(tensor_error(gradient, reference, scale) < limit);
    if (model->options().dtype == DType::f64) CHECK(largest_error(gradient, reference, scale) < limit);
    if (!is_key_bias(name))
      CHECK(norm(model.gradient(name)) == doctest::Approx(norms.at(name).as_array()[1].as_double()).epsilon(1e-3));
  }
}

template <class Body>
void for_each_case(const Body& body) {
  for (const std::string& name : golden_model_names())
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(name);
      CAPTURE(dtype_name(dtype));
      body(GoldenModel(name), dtype);
    }
}

}  // namespace

TEST_CASE("logits equal those of transformers") {
  for_each_case([](const GoldenModel& golden, DType dtype) {
    TestModel model(golden.config, {.dtype = dtype});
    golden.load(model);
    std::vector<int64_t> prompt_lengths;
    const RaggedBatch batch = golden.batch(prompt_lengths);
    const std::vector<double> reference = golden.values.read_vector<double>("logits");
    const auto vocabulary = static_cast<size_t>(golden.config.vocab_size);
    // log p of every token of the vocabulary at every position: logits up to a constant per row, and as
    // log-probabilities.
    double largest = 0;
    const double scale = norm(reference) / std::sqrt(static_cast<double>(reference.size()));
    for (size_t token = 0; token < vocabulary; ++token) {
      PredictionRows rows;
      for (int32_t row = 0; row < batch.token_count(); ++row) {
        rows.rows.push_back(row);
        rows.targets.push_back(static_cast<int32_t>(token));
      }
      const std::vector<double> log_probs = model->log_probs(batch, rows).log_probs;
      for (size_t row = 0; row < log_probs.size(); ++row) {
        double sum = 0;
        for (size_t j = 0; j < vocabulary; ++j)
          sum += std::exp(reference[row * vocabulary + j] - reference[row * vocabulary]);
        const double expected = reference[row * vocabulary + token] - reference[row * vocabulary] - std::log(sum);
        largest = std::max(largest, std::fabs(log_probs[row] - expected) / std::max(std::fabs(expected), scale));
      }
    }
    CHECK(largest < tolerance(dtype));
  });
}

TEST_CASE("the loss on responses and every gradient equal those of torch") {
  for_each_case([](const GoldenModel& golden, DType dtype) {
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      TestModel model(golden.config, {.dtype = dtype, .recompute = recompute});
      golden.load(model);
      std::vector<int64_t> prompt_lengths;
      const RaggedBatch batch = golden.batch(prompt_lengths);
      const Json& expected = golden.golden.at("response_loss");
      model.zero_gradients();
      const double loss = model.cross_entropy(batch, prompt_lengths);
      CHECK(loss == doctest::Approx(expected.at("loss").as_double()).epsilon(tolerance(dtype)));
      check_gradients(model, golden, "gradient", expected.at("gradient_sum_and_norm"), tolerance(dtype));
    }
  });
}

TEST_CASE("the loss on all tokens equals that of torch") {
  for_each_case([](const GoldenModel& golden, DType dtype) {
    TestModel model(golden.config, {.dtype = dtype});
    golden.load(model);
    std::vector<int64_t> unused;
    const RaggedBatch batch = golden.batch(unused);
    const double loss = model.cross_entropy(batch, std::vector<int64_t>(static_cast<size_t>(batch.sequences()), 1));
    CHECK(loss ==
          doctest::Approx(golden.golden.at("all_tokens_loss").at("loss").as_double()).epsilon(tolerance(dtype)));
  });
}

TEST_CASE("ten steps of AdamW with clipping and decay equal those of torch") {
  for_each_case([](const GoldenModel& golden, DType dtype) {
    const Json& expected = golden.golden.at("adamw");
    TestModel model(golden.config, {.dtype = dtype,
                                    .optimizer = {.beta1 = expected.at("beta1").as_double(),
                                                  .beta2 = expected.at("beta2").as_double(),
                                                  .epsilon = expected.at("eps").as_double(),
                                                  .weight_decay = expected.at("weight_decay_of_matrices").as_double(),
                                                  .max_grad_norm = expected.at("max_grad_norm").as_double()}});
    golden.load(model);
    std::vector<int64_t> prompt_lengths;
    const RaggedBatch batch = golden.batch(prompt_lengths);
    for (size_t step = 0; step < 10; ++step) {
      model.zero_gradients();
      const double loss = model.cross_entropy(batch, prompt_lengths);
      CHECK(loss == doctest::Approx(expected.at("losses").as_array()[step].as_double()).epsilon(tolerance(dtype)));
      const double gradient_norm = model->optimizer().gradient_norm(model.stream());
      CHECK(gradient_norm ==
            doctest::Approx(expected.at("grad_norms").as_array()[step].as_double()).epsilon(10 * tolerance(dtype)));
      model->optimizer().step(model.stream(), expected.at("lr").as_double(), gradient_norm);
    }
    // The whole parameter vector. k_proj.bias is left out: its true gradient is 0, and Adam turns rounding into steps
    // of lr.
    double difference = 0;
    double reference_norm = 0;
    for (const std::string& name : model.tensor_names()) {
      if (is_key_bias(name)) continue;
      const std::vector<double> reference = golden.values.read_vector<double>("final/" + name);
      const std::vector<double> final_values = strided(model.weight(name), golden.stride("final"));
      REQUIRE(reference.size() == final_values.size());
      for (size_t i = 0; i < reference.size(); ++i) {
        difference += std::pow(final_values[i] - reference[i], 2);
        reference_norm += std::pow(reference[i], 2);
      }
      if (dtype == DType::f64) {
        CAPTURE(name);
        CHECK(largest_error(final_values, reference, norm(reference)) < tolerance(dtype));
      }
    }
    CHECK(std::sqrt(difference / reference_norm) < tolerance(dtype));
  });
}

TEST_CASE("rewards, the ranking loss and its gradients equal those of torch") {
  for_each_case([](const GoldenModel& golden, DType dtype) {
    TestModel model(golden.config, {.head = Head::scalar, .dtype = dtype});
    golden.load(model);
    const Json& expected = golden.golden.at("reward");
    RaggedBatch batch;
    std::vector<int32_t> rows;
    std::vector<double> rewards;
    for (const Json& pair : expected.at("pairs").as_array())
      for (const char* side : {"chosen", "rejected"}) {
        batch.append(token_ids(pair.at(side)), 0);
        rows.push_back(batch.offsets.back() - 1);
      }
    for (const Json& pair : expected.at("rewards").as_array())
      for (const char* side : {"chosen", "rejected"}) rewards.push_back(pair.at(side).as_double());
    CHECK(tensor_error(model->scores(batch, rows), rewards, norm(rewards)) < tolerance(dtype));

    model.zero_gradients();
    double loss = 0;
    std::vector<double> pair_losses(rewards.size() / 2);
    model->accumulate_score_loss(batch, rows, [&](Stream& stream, const Tensor& scores, const Tensor& d_scores) {
      std::vector<std::byte> storage(pair_losses.size() * sizeof(double));
      const Tensor losses(storage.data(), statistics_dtype(dtype), DeviceKind::cpu,
                          {static_cast<int64_t>(pair_losses.size())});
      ranking_loss(stream, {.scores = scores,
                            .loss = losses,
                            .d_scores = d_scores,
                            .scale = 1 / static_cast<double>(pair_losses.size())});
      for (const double value : to_host(stream, losses)) loss += value / static_cast<double>(pair_losses.size());
    });
    CHECK(loss == doctest::Approx(expected.at("last_token_loss").as_double()).epsilon(tolerance(dtype)));
    check_gradients(model, golden, "reward_gradient", expected.at("gradient_sum_and_norm"), tolerance(dtype));
  });
}

}  // namespace tercet::testing
