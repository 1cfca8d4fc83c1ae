// Whole models on a GPU, emulated or real, against the CPU in fp64: loss, every gradient, three AdamW steps.
#include <doctest/doctest.h>

#include <map>

#include "base/rng.h"
#include "devices.h"
#include "test_model.h"

namespace tercet::testing {
namespace {

using Vectors = std::map<std::string, std::vector<double>>;

double as_held(double value, DType dtype) {
  std::array<std::byte, 8> raw{};
  convert(DType::f64, &value, dtype, raw.data(), 1);
  convert(dtype, raw.data(), DType::f64, &value, 1);
  return value;
}

struct Problem {
  std::string name;
  OptConfig config;
  Vectors weights;
  RaggedBatch batch;
  std::vector<int64_t> from;  // the first position of each sequence that is predicted
};

// The golden model with its own weights, which are large: its losses are well above log(vocabulary), its hidden units
// close to ReLU's kink.
Problem golden_problem(const std::string& name) {
  const GoldenModel golden(name);
  Problem problem{name + ", golden weights", golden.config, {}, {}, {}};
  problem.batch = golden.batch(problem.from);
  TestModel model(golden.config);
  golden.load(model);
  for (const std::string& tensor : model.tensor_names()) problem.weights[tensor] = model.weight(tensor);
  return problem;
}

// Two layers of the golden model's shape with weights as training finds them: N(0, init_std) around 0, norms around 1.
// A bias of +-1, some nine standard deviations, holds the hidden units off ReLU's kink.
Problem two_layer_problem(const std::string& name) {
  const GoldenModel golden(name);
  Problem problem{name + ", two layers", golden.config, {}, {}, {}};
  problem.batch = golden.batch(problem.from);
  problem.config.num_hidden_layers = 2;
  TestModel model(problem.config);
  for (const std::string& tensor : model.tensor_names()) {
    const RandomStream random(hash64(std::string_view(tensor)), RandomPurpose::init_weights, 0);
    const bool scale = tensor.ends_with("layer_norm.weight");
    const bool hidden = tensor.ends_with("fc1.bias") && problem.config.activation_function == Activation::relu;
    std::vector<double> values = model.weight(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = (scale ? 1 : 0) + problem.config.init_std * random.normal(i);
      if (hidden) values[i] += random.uniform(i, 1) < 0.5 ? -1 : 1;
    }
    problem.weights[tensor] = values;
  }
  return problem;
}

// Starts from the weights as `held` holds them, so that all start from the same.
void load(const Problem& problem, TestModel& model, DType held) {
  for (const auto& [name, exact] : problem.weights) {
    std::vector<double> values = exact;
    for (double& value : values) value = as_held(value, held);
    model.set_weight(name, values);
  }
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> log_probs;  // of the first step
  Vectors gradients;              // of the first step, the loss scale divided out
  double gradient_norm = 0;
  Vectors before, after;  // the weights
  double moments = 0;     // the norm of Adam's first moments
};

double moments_norm(TestModel& model) {
  std::vector<double> moments;
  for (int u = 0; u < model->units().count(); ++u)
    for (int s = 0; s < static_cast<int>(model->units().spec(u).segments.size()); ++s) {
      const std::vector<double> m = to_host(model.stream(), model->units().buffers(u, s).m);
      moments.insert(moments.end(), m.begin(), m.end());
    }
  return norm(moments);
}

Trained train(const Problem& problem, const std::string& device, DType dtype, DType held) {
  TestModel model(problem.config, {.device = device, .dtype = dtype, .optimizer = {.epsilon = 1e-6}});
  load(problem, model, held);
  AdamW& optimizer = model->optimizer();
  Trained result;
  for (const std::string& name : model.tensor_names()) result.before[name] = model.weight(name);
  for (int step = 0; step < 3; ++step) {
    model.zero_gradients();
    result.losses.push_back(model.cross_entropy(problem.batch, problem.from));
    if (step == 0) result.log_probs = model.log_probs();
    if (step == 0)
      for (const std::string& name : model.tensor_names()) {
        result.gradients[name] = model.gradient(name);
        for (double& value : result.gradients[name]) value /= optimizer.loss_scale().value();
      }
    const double gradient_norm = optimizer.gradient_norm(model.stream());
    if (step == 0) result.gradient_norm = gradient_norm;
    optimizer.step(model.stream(), 1e-3, gradient_norm);
  }
  for (const std::string& name : model.tensor_names()) result.after[name] = model.weight(name);
  result.moments = moments_norm(model);
  return result;
}

std::vector<double> joined(const Vectors& vectors) {
  std::vector<double> all;
  for (const auto& [name, values] : vectors) all.insert(all.end(), values.begin(), values.end());
  return all;
}

std::vector<double> movement(const Trained& trained) {
  std::vector<double> moved = joined(trained.after);
  const std::vector<double> before = joined(trained.before);
  for (size_t i = 0; i < moved.size(); ++i) moved[i] -= before[i];
  return moved;
}

// Bounds of |x - reference| / |reference|.
struct Bounds {
  DType dtype;
  double losses;           // and every token's log-probability
  double gradient;         // all of it as one vector
  double tensor_gradient;  // of each tensor
  double weights;          // after three steps
  double movement;         // from the first weights to these
};

void check_problem(const Problem& problem, const std::string& device, const Bounds& bounds) {
  const std::string what = fmt::format("{} on {} in {}", problem.name, device, dtype_name(bounds.dtype));
  CAPTURE(what);
  const Trained expected = train(problem, "cpu", DType::f64, bounds.dtype);
  const Trained actual = train(problem, device, bounds.dtype, bounds.dtype);
  CHECK(tensor_error(actual.losses, expected.losses, 0) <= bounds.losses);
  CHECK(tensor_error(actual.log_probs, expected.log_probs, 0) <= bounds.losses);
  const double scale = norm(joined(expected.gradients));
  double worst = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    const std::string tensor = name;
    CAPTURE(tensor);
    const double error = tensor_error(actual.gradients.at(tensor), gradient, 10 * scale);
    worst = std::max(worst, error);
    CHECK(error <= bounds.tensor_gradient);
  }
  const double gradient = tensor_error(joined(actual.gradients), joined(expected.gradients), 0);
  CHECK(gradient <= bounds.gradient);
  CHECK(std::fabs(actual.gradient_norm - scale) <= bounds.gradient * scale);
  CHECK(std::fabs(actual.moments - expected.moments) <= bounds.gradient * expected.moments);
  const double weights = tensor_error(joined(actual.after), joined(expected.after), 0);
  CHECK(weights <= bounds.weights);
  const double moved = tensor_error(movement(actual), movement(expected), 0);
  CHECK(moved <= bounds.movement);
  MESSAGE(
      fmt::format("{}: gradient {:.1e}, worst tensor {:.1e}, weights after three AdamW steps {:.1e}, movement {:.1e}",
                  what, gradient, worst, weights, moved));
}

// The tolerances of single ops (tests/kernels) hold for the whole model: some twenty roundings, each a third of its
// bound or less, add up like a random walk. A small tensor scatters up to twice as far. A first AdamW step is the sign
// of the gradient wherever that is well above epsilon, so an element close to 0 may go the other way.
TEST_CASE("forward, backward and three AdamW steps of two-layer models on a GPU are the CPU's") {
  constexpr Bounds kBounds[] = {{DType::f32, 1e-5, 1e-5, 1e-5, 1e-5, 1e-4},
                                {DType::f16, 1e-3, 1e-3, 2e-3, 1e-3, 1e-2},
                                {DType::bf16, 6e-3, 6e-3, 1.2e-2, 6e-3, 6e-2}};
  for (const std::string& device : test::present_gpu_devices())
    for (const std::string& name : golden_model_names()) {
      const Problem problem = two_layer_problem(name);
      for (const Bounds& bounds : kBounds) check_problem(problem, device, bounds);
    }
}

// With ReLU near its kink, rounding by a share e of a value puts about a share e of the hidden units on the other side
// of 0, which is worth sqrt(e) of the gradient's norm: 2e-2 in fp16, 6e-2 in bf16, several times over.
TEST_CASE("forward, backward and three AdamW steps of golden models on a GPU are the CPU's") {
  constexpr Bounds kSmooth[] = {{DType::f32, 1e-5, 1e-5, 1e-5, 1e-5, 1e-3},
                                {DType::f16, 3e-3, 5e-3, 5e-3, 1e-3, 3e-2},
                                {DType::bf16, 1.2e-2, 6e-2, 6e-2, 6e-3, 1.5e-1}};
  constexpr Bounds kKinked[] = {{DType::f32, 1e-5, 1e-5, 1e-5, 1e-5, 1e-3},
                                {DType::f16, 3e-3, 1.1e-1, 1.1e-1, 1e-3, 1.5e-1},
                                {DType::bf16, 1.2e-2, 2e-1, 2e-1, 6e-3, 2.5e-1}};
  for (const std::string& device : test::present_gpu_devices())
    for (const std::string& name : golden_model_names()) {
      const Problem problem = golden_problem(name);
      const bool smooth = problem.config.activation_function == Activation::gelu;
      for (const Bounds& bounds : smooth ? kSmooth : kKinked) check_problem(problem, device, bounds);
    }
}

}  // namespace
}  // namespace tercet::testing
