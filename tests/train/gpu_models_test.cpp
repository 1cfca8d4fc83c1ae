// Whole models on a GPU, emulated or real, against the CPU in fp64: loss, every gradient, three AdamW steps.
#include <doctest/doctest.h>

#include <map>

#include "devices.h"
#include "test_model.h"

namespace tercet::testing {
namespace {

using Vectors = std::map<std::string, std::vector<double>>;

// Relative norms. An op's own bound is 1e-5, 1e-3, 6e-3 (tests/kernels); a gradient has passed some twenty of them,
// whose roundings add up like a random walk. With ReLU, rounding by a share e of a value puts about a share e of the
// hidden units on the other side of 0, which is worth sqrt(e) of the gradient's norm: 2e-2 in fp16, 6e-2 in bf16,
// several times over. A first AdamW step is the sign of the gradient wherever that is well above epsilon, so an element
// close to 0 may go the other way.
struct Bounds {
  DType dtype;
  double loss;
  double smooth, kinked;                    // gradients without and with ReLU
  double smooth_movement, kinked_movement;  // of the weights
};
constexpr Bounds kBounds[] = {{DType::f32, 1e-5, 1e-5, 1e-5, 1e-3, 1e-3},
                              {DType::f16, 3e-3, 5e-3, 1.1e-1, 3e-2, 1.5e-1},
                              {DType::bf16, 1.2e-2, 6e-2, 2e-1, 1.5e-1, 2.5e-1}};

double as_held(double value, DType dtype) {
  std::array<std::byte, 8> raw{};
  convert(DType::f64, &value, dtype, raw.data(), 1);
  convert(dtype, raw.data(), DType::f64, &value, 1);
  return value;
}

// The golden model's weights as `dtype` holds them, so that all start from the same.
void load_rounded(const GoldenModel& golden, TestModel& model, DType dtype) {
  golden.load(model);
  for (const std::string& name : model.tensor_names()) {
    std::vector<double> values = model.weight(name);
    for (double& value : values) value = as_held(value, dtype);
    model.set_weight(name, values);
  }
}

struct Trained {
  std::vector<double> losses;
  Vectors gradients;  // of the first step, the loss scale divided out
  double gradient_norm = 0;
  Vectors movement;    // of the weights over all steps
  double moments = 0;  // the norm of Adam's first moments
};

Trained train(const GoldenModel& golden, const std::string& device, DType dtype, DType held, int steps) {
  TestModel model(golden.config, {.device = device, .dtype = dtype, .optimizer = {.epsilon = 1e-6}});
  load_rounded(golden, model, held);
  std::vector<int64_t> from;
  const RaggedBatch batch = golden.batch(from);
  Trained result;
  for (const std::string& name : model.tensor_names()) result.movement[name] = model.weight(name);
  for (int step = 0; step < steps; ++step) {
    AdamW& optimizer = model->optimizer();
    model.zero_gradients();
    result.losses.push_back(model.cross_entropy(batch, from));
    if (step == 0)
      for (const std::string& name : model.tensor_names()) {
        result.gradients[name] = model.gradient(name);
        for (double& value : result.gradients[name]) value /= optimizer.loss_scale().value();
      }
    const double gradient_norm = optimizer.gradient_norm(model.stream());
    if (step == 0) result.gradient_norm = gradient_norm;
    optimizer.step(model.stream(), 1e-3, gradient_norm);
  }
  std::vector<double> moments;
  for (int u = 0; u < model->units().count(); ++u)
    for (int s = 0; s < static_cast<int>(model->units().spec(u).segments.size()); ++s) {
      const std::vector<double> m = to_host(model.stream(), model->units().buffers(u, s).m);
      moments.insert(moments.end(), m.begin(), m.end());
    }
  result.moments = norm(moments);
  for (auto& [name, before] : result.movement) {
    const std::vector<double> after = model.weight(name);
    for (size_t i = 0; i < before.size(); ++i) before[i] = after[i] - before[i];
  }
  return result;
}

std::vector<double> joined(const Vectors& vectors) {
  std::vector<double> all;
  for (const auto& [name, values] : vectors) all.insert(all.end(), values.begin(), values.end());
  return all;
}

void check_model(const std::string& name, const std::string& device, const Bounds& bounds) {
  const std::string what = fmt::format("{} on {} in {}", name, device, dtype_name(bounds.dtype));
  CAPTURE(what);
  const GoldenModel golden(name);
  const Trained expected = train(golden, "cpu", DType::f64, bounds.dtype, 3);
  const Trained actual = train(golden, device, bounds.dtype, bounds.dtype, 3);
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const double bound = (i == 0 ? 1 : 3) * bounds.loss;  // after a step the weights differ too
    CHECK(std::fabs(actual.losses[i] - expected.losses[i]) <= bound * expected.losses[i]);
  }
  const bool smooth = golden.config.activation_function == Activation::gelu;
  const double bound = smooth ? bounds.smooth : bounds.kinked;
  const double scale = norm(joined(expected.gradients));
  double worst = 0;
  for (const auto& [tensor, gradient] : expected.gradients) {
    CAPTURE(tensor);
    const double error = tensor_error(actual.gradients.at(tensor), gradient, 10 * scale);
    worst = std::max(worst, error);
    CHECK(error <= bound);
  }
  CHECK(std::fabs(actual.gradient_norm - scale) <= bound * scale);
  CHECK(std::fabs(actual.moments - expected.moments) <= bound * expected.moments);
  const double movement = tensor_error(joined(actual.movement), joined(expected.movement), 0);
  CHECK(movement <= (smooth ? bounds.smooth_movement : bounds.kinked_movement));
  MESSAGE(fmt::format("{}: gradients {:.1e}, three AdamW steps {:.1e}", what, worst, movement));
}

TEST_CASE("forward, backward and three AdamW steps of whole models on a GPU are the CPU's") {
  for (const std::string& device : test::present_gpu_devices())
    for (const Bounds& bounds : kBounds)
      for (const std::string& name : golden_model_names()) check_model(name, device, bounds);
}

}  // namespace
}  // namespace tercet::testing
