#include "kernels/adamw.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

TEST_CASE("Adam's first steps are PyTorch's and not TensorFlow's") {
  const Json& golden = rlhf_goldens().at("adam").at("first_steps");
  for_each_wide_target([&](Runner& r) {
    for (const Json& c : golden.at("cases").as_array()) {
      const Tensor weights = r.zeros({1});
      adamw(r.stream(), {.weights = weights,
                         .gradient = r.tensor({c.at("gradient").as_double()}, {1}),
                         .m = r.zeros({1}),
                         .v = r.zeros({1}),
                         .control = r.doubles({1, 0}),
                         .lr = golden.at("lr").as_double(),
                         .beta1 = golden.at("beta1").as_double(),
                         .beta2 = golden.at("beta2").as_double(),
                         .epsilon = golden.at("eps").as_double(),
                         .step = 1});
      const double step = -r.read(weights)[0];
      // fp32: 1 - beta is rounded, and so is the root.
      CHECK(step == doctest::Approx(c.at("step").as_double()).epsilon(r.tolerance(1e-12, 1e-6).element));
      CHECK(std::abs(step - c.at("step_tensorflow_form").as_double()) > 1e-8);
    }
  });
}

TEST_CASE("AdamW follows PyTorch's trajectory with weight decay") {
  const Json& golden = rlhf_goldens().at("adam").at("trajectory");
  const Values start = numbers(golden.at("start"));
  const auto n = static_cast<int64_t>(start.size());
  for_each_wide_target([&](Runner& r) {
    AdamWArgs args{.weights = r.tensor(start, {n}),
                   .m = r.zeros({n}),
                   .v = r.zeros({n}),
                   .control = r.doubles({0.5, 0}),
                   .lr = golden.at("lr").as_double(),
                   .beta1 = golden.at("beta1").as_double(),
                   .beta2 = golden.at("beta2").as_double(),
                   .epsilon = golden.at("eps").as_double(),
                   .weight_decay = golden.at("weight_decay").as_double(),
                   .step = 0};
    for (const Json& gradient : golden.at("gradients").as_array()) {
      Values doubled = numbers(gradient);
      for (double& value : doubled) value *= 2;  // undone by the gradient scale of 0.5
      args.gradient = r.tensor(doubled, {n});
      ++args.step;
      adamw(r.stream(), args);
    }
    // fp32: twelve steps with a handful of roundings each.
    const Tolerance tolerance = r.tolerance(1e-13, 2e-6);
    check_close(r.read(args.weights), numbers(golden.at("end")), tolerance, "weights");
    check_close(r.read(args.m), numbers(golden.at("first_moment")), tolerance, "m");
    check_close(r.read(args.v), numbers(golden.at("second_moment")), tolerance, "v");
  });
}

TEST_CASE("the gradient becomes the update: what the step adds to the weights, weight decay included") {
  for (const int64_t n : {1, 63, 4099}) {
    const Values start = random_values(n, 1), gradient = random_values(n, 2);
    for_each_wide_target([&](Runner& r) {
      AdamWArgs args{.weights = r.tensor(start, {n}),
                     .gradient = r.tensor(gradient, {n}),
                     .m = r.zeros({n}),
                     .v = r.zeros({n}),
                     .control = r.doubles({1, 0}),
                     .lr = 0.01,
                     .weight_decay = 0.5};
      adamw(r.stream(), args);
      const Values before = r.rounded(start), after = r.read(args.weights), update = r.read(args.gradient);
      Values difference, formula;
      for (size_t i = 0; i < before.size(); ++i) {
        difference.push_back(after[i] - before[i]);
        const double g = gradient[i];  // the first step: m / (1 - beta1) = g, v / (1 - beta2) = g^2
        formula.push_back(-0.01 * 0.5 * before[i] - 0.01 * g / (std::abs(g) + 1e-8));
      }
      // fp32: the difference carries the rounding of weights around 1, the update its own.
      check_close(update, difference, r.tolerance(1e-15, 2.5e-7), "difference");
      check_close(update, formula, r.tolerance(1e-15, 1e-8), "formula");
    });
  }
}

TEST_CASE("a skipped step changes nothing") {
  for_each_wide_target([](Runner& r) {
    const Tensor weights = r.tensor({1, 2}, {2});
    const Tensor m = r.tensor({3, 4}, {2});
    const Tensor v = r.tensor({5, 6}, {2});
    const Tensor gradient = r.tensor({8, 1}, {2});
    adamw(r.stream(),
          {.weights = weights, .gradient = gradient, .m = m, .v = v, .control = r.doubles({1, 1}), .lr = 0.1});
    check_equal(r.read(weights), {1, 2}, "weights");
    check_equal(r.read(m), {3, 4}, "m");
    check_equal(r.read(v), {5, 6}, "v");
    check_equal(r.read(gradient), {8, 1}, "gradient");
  });
}

TEST_CASE("16-bit weights are the rounded fp32 master, so that small steps are not lost") {
  for (const std::string& device : present_devices())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Runner r(device, dtype);
      const Tensor weights = r.tensor(Values(9, 1.0), {9});
      AdamWArgs args{.weights = weights,
                     .master = r.statistics(Values(9, 1.0), {9}),
                     .m = r.zero_statistics({9}),
                     .v = r.zero_statistics({9}),
                     .control = r.doubles({1, 0}),
                     .lr = 1e-3};
      for (int step = 1; step <= 6; ++step) {
        args.step = step;
        args.gradient = r.statistics(Values(9, -1.0), {9});
        adamw(r.stream(), args);
      }
      check_close(r.read(args.master), Values(9, 1.006), 1e-6, "master");
      // The bf16 and the fp16 number nearest to 1.006.
      check_equal(r.read(weights), Values(9, dtype == DType::bf16 ? 1.0078125 : 1.005859375), "weights");
      args.master = Tensor();
      CHECK_THROWS_AS(adamw(r.stream(), args), Error);
    }
}

TEST_CASE("the sum of squares is added in fp64 and is non-finite when an element is") {
  for (const int64_t n : {0, 1, 63, 65, 4097, 200001}) {
    const Values x = random_values(n, 1, 1e-3);
    for_each_target([&](Runner& r) {
      double expected = 5;
      for (const double value : r.rounded(x)) expected += value * value;
      const Tensor sum = r.doubles({5});
      sum_of_squares(r.stream(), {r.tensor(x, {n}), sum});
      check_close(r.read(sum), {expected}, 1e-13, "sum");
    });
  }
  for_each_target([](Runner& r) {
    for (const double bad : {std::nan(""), double{INFINITY}, -double{INFINITY}}) {
      Values x(100, 1.0);
      x[57] = bad;
      const Tensor sum = r.doubles({0});
      sum_of_squares(r.stream(), {r.tensor(x, {100}), sum});
      CHECK(!std::isfinite(r.read(sum)[0]));
    }
    const Tensor sum = r.doubles({0});
    const double large = r.dtype() == DType::f16 ? 6e4 : 1e30;
    const double held = r.rounded({large})[0];
    sum_of_squares(r.stream(), {r.tensor({large, large}, {2}), sum});
    CHECK(r.read(sum)[0] == doctest::Approx(2 * held * held).epsilon(1e-13));
  });
}

TEST_CASE("gradient clipping's norms are the golden ones") {
  for (const Json& golden : rlhf_goldens().at("gradient_clipping").as_array())
    for_each_wide_target([&](Runner& r) {
      const Tensor sum = r.doubles({0});
      for (const Json& gradient : golden.at("gradients").as_array()) {
        const Values values = numbers(gradient);
        sum_of_squares(r.stream(), {r.tensor(values, {static_cast<int64_t>(values.size())}), sum});
      }
      check_close({std::sqrt(r.read(sum)[0])}, {golden.at("norm").as_double()}, r.tolerance(1e-14, 1e-7), "norm");
    });
}

TEST_CASE("a moving average approaches a constant and stays there") {
  const auto run = [](Runner& r) {
    const Tensor average = r.statistics({0, 3}, {2});
    const Tensor x = r.tensor({1, 3}, {2});
    for (int i = 0; i < 100; ++i) moving_average(r.stream(), {average, x, 0.99});
    // fp32: the average's own roundings, whatever x is stored in.
    check_close(r.read(average), {1 - std::pow(0.99, 100), 3}, r.is_fp64() ? 1e-13 : 1e-6, "average");
  };
  for_each_target(run);
}

TEST_CASE("the optimiser refuses wrong shapes and dtypes") {
  for_each_wide_target([](Runner& r) {
    const Tensor x = r.zeros({3});
    const Tensor control = r.doubles({1, 0});
    CHECK_THROWS_AS(adamw(r.stream(), {.weights = x, .gradient = r.zeros({2}), .m = x, .v = x, .control = control}),
                    Error);
    CHECK_THROWS_AS(adamw(r.stream(), {.weights = x, .gradient = x, .m = x, .v = x, .control = r.doubles({1})}), Error);
    CHECK_THROWS_AS(adamw(r.stream(), {.weights = x, .gradient = x, .m = x, .v = x, .control = control, .step = 0}),
                    Error);
    CHECK_THROWS_AS(sum_of_squares(r.stream(), {x, r.doubles({0, 0})}), Error);
    CHECK_THROWS_AS(moving_average(r.stream(), {x, r.zeros({4}), 0.5}), Error);
  });
}
