#include "kernels/linear.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct Problem {
  int64_t rows, depth, columns;
  Values x, weight, bias, d_out;
};

// Inputs as the runner holds them.
Problem problem(const Runner& r, int64_t rows, int64_t depth, int64_t columns) {
  return {rows,
          depth,
          columns,
          r.rounded(random_values(rows * depth, 1)),
          r.rounded(random_values(columns * depth, 2)),
          r.rounded(random_values(columns, 3)),
          r.rounded(random_values(rows * columns, 4))};
}

// alpha x W^T + bias, plainly.
Values reference_product(const Problem& p, double alpha) {
  Values out(static_cast<size_t>(p.rows * p.columns));
  for (int64_t t = 0; t < p.rows; ++t)
    for (int64_t m = 0; m < p.columns; ++m) {
      double sum = 0;
      for (int64_t k = 0; k < p.depth; ++k)
        sum += p.x[static_cast<size_t>(t * p.depth + k)] * p.weight[static_cast<size_t>(m * p.depth + k)];
      out[static_cast<size_t>(t * p.columns + m)] = alpha * sum + p.bias[static_cast<size_t>(m)];
    }
  return out;
}

double activate(double x, Activation activation) {
  if (activation == Activation::relu) return x > 0 ? x : 0;
  if (activation == Activation::gelu) return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  return x;
}

// Sums of `depth` products of standard normals: rounding grows with their square root, and the worst of tens of
// thousands of elements lies at five standard deviations; four lanes add more terms each than sixteen.
Tolerance product_tolerance(const Runner& r, int64_t depth) {
  const double growth = 4 + 8 * std::sqrt(static_cast<double>(depth));
  return r.tolerance(1e-14 * growth, 6e-8 * growth);
}

}  // namespace

TEST_CASE("linear is x W^T plus bias with and without activation, for few and many rows and odd widths") {
  for_each_target([](Runner& r) {
    for (const auto& [rows, depth, columns] : {std::array<int64_t, 3>{0, 5, 7},
                                               {1, 1, 1},
                                               {1, 64, 33},
                                               {3, 17, 5},
                                               {63, 128, 65},
                                               {64, 31, 130},
                                               {65, 40, 9},
                                               {129, 96, 513},
                                               {300, 7, 600},
                                               {5, 768, 70}}) {
      const Problem p = problem(r, rows, depth, columns);
      for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu}) {
        Values expected = reference_product(p, 0.5);
        for (double& value : expected) value = activate(value, activation);
        LinearForwardArgs args{.x = r.tensor(p.x, {rows, depth}, depth + 3),
                               .weight = r.tensor(p.weight, {columns, depth}),
                               .bias = r.tensor(p.bias, {columns}),
                               .out = r.empty({rows, columns}, columns + 2),
                               .activation = activation,
                               .alpha = 0.5};
        linear_forward(r.stream(), args);
        check_close(r.read(args.out), expected, product_tolerance(r, depth),
                    fmt::format("T={} K={} M={}", rows, depth, columns));
      }
    }
  });
}

TEST_CASE("linear adds to its output when asked and needs no bias") {
  for_each_target([](Runner& r) {
    for (const int64_t rows : {2, 90}) {
      const Problem p = problem(r, rows, 24, 10);
      Values expected = reference_product(p, -2);
      for (int64_t i = 0; i < rows * 10; ++i)
        expected[static_cast<size_t>(i)] += p.d_out[static_cast<size_t>(i)] - p.bias[static_cast<size_t>(i % 10)];
      const Tensor out = r.tensor(p.d_out, {rows, 10});
      linear_forward(r.stream(), {.x = r.tensor(p.x, {rows, 24}),
                                  .weight = r.tensor(p.weight, {10, 24}),
                                  .out = out,
                                  .alpha = -2,
                                  .accumulate = true});
      check_close(r.read(out), expected, product_tolerance(r, 24), "accumulated");
    }
  });
}

TEST_CASE("linear's gradients are those of central differences") {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu}) {
    for_each_target([&](Runner& r) {
      const Problem p = problem(r, 6, 5, 4);
      const auto loss = [&](const Values& x, const Values& weight, const Values& bias) {
        Problem changed = p;
        changed.x = x;
        changed.weight = weight;
        changed.bias = bias;
        Values out = reference_product(changed, 0.7);
        for (double& value : out) value = activate(value, activation);
        return weighted_sum(out, p.d_out);
      };
      const Tensor x = r.tensor(p.x, {6, 5});
      const Tensor weight = r.tensor(p.weight, {4, 5});
      const Tensor out = r.empty({6, 4});
      const Tensor pre = r.empty({6, 4});
      linear_forward(r.stream(), {.x = x,
                                  .weight = weight,
                                  .bias = r.tensor(p.bias, {4}),
                                  .out = out,
                                  .pre_activation = pre,
                                  .activation = activation,
                                  .alpha = 0.7});
      LinearBackwardArgs args{.d_out = r.tensor(p.d_out, {6, 4}),
                              .x = x,
                              .weight = weight,
                              .d_x = r.empty({6, 5}),
                              .d_weight = r.zeros({4, 5}),
                              .d_bias = r.zeros({4}),
                              .activation = activation,
                              .alpha = 0.7};
      if (activation == Activation::relu) args.out = out;
      if (activation == Activation::gelu) args.pre_activation = pre;
      linear_backward(r.stream(), args);
      // Central differences of step 1e-5 are good to 1e-10 relative.
      const Tolerance tolerance = r.tolerance(1e-8, 2e-6);
      check_close(r.read(args.d_x), numeric_gradient([&](const Values& v) { return loss(v, p.weight, p.bias); }, p.x),
                  tolerance, "d_x");
      check_close(r.read(args.d_weight),
                  numeric_gradient([&](const Values& v) { return loss(p.x, v, p.bias); }, p.weight), tolerance,
                  "d_weight");
      check_close(r.read(args.d_bias),
                  numeric_gradient([&](const Values& v) { return loss(p.x, p.weight, v); }, p.bias), tolerance,
                  "d_bias");
    });
  }
}

TEST_CASE("linear's parameter gradients are added to, d_x only when asked") {
  for_each_target([](Runner& r) {
    for (const int64_t rows : {0, 1, 65, 700}) {
      const Problem p = problem(r, rows, 20, 12);
      LinearBackwardArgs args{.d_out = r.tensor(p.d_out, {rows, 12}),
                              .x = r.tensor(p.x, {rows, 20}),
                              .weight = r.tensor(p.weight, {12, 20}),
                              .d_x = r.empty({rows, 20}),
                              .d_weight = r.zeros({12, 20}),
                              .d_bias = r.zeros({12})};
      linear_backward(r.stream(), args);
      const Values d_x = r.read(args.d_x);
      const Values d_weight = r.read(args.d_weight);
      const Values d_bias = r.read(args.d_bias);
      args.accumulate_d_x = true;
      linear_backward(r.stream(), args);
      const auto twice = [](Values values) {
        for (double& value : values) value *= 2;
        return values;
      };
      const Tolerance tolerance = product_tolerance(r, std::max<int64_t>(rows, 20));
      check_close(r.read(args.d_x), twice(d_x), tolerance, "d_x");
      check_close(r.read(args.d_weight), twice(d_weight), tolerance, "d_weight");
      check_close(r.read(args.d_bias), twice(d_bias), tolerance, "d_bias");
    }
  });
}

TEST_CASE("linear needs only the tensors of the gradients that are asked for") {
  for_each_target([](Runner& r) {
    const Problem p = problem(r, 9, 6, 4);
    const Tensor d_out = r.tensor(p.d_out, {9, 4});
    const Tensor d_x = r.empty({9, 6});
    linear_backward(r.stream(), {.d_out = d_out, .weight = r.tensor(p.weight, {4, 6}), .d_x = d_x});
    const Tensor d_weight = r.zeros({4, 6});
    linear_backward(r.stream(), {.d_out = d_out, .x = r.tensor(p.x, {9, 6}), .d_weight = d_weight});
    const Tensor both_x = r.empty({9, 6});
    const Tensor both_weight = r.zeros({4, 6});
    linear_backward(r.stream(), {.d_out = d_out,
                                 .x = r.tensor(p.x, {9, 6}),
                                 .weight = r.tensor(p.weight, {4, 6}),
                                 .d_x = both_x,
                                 .d_weight = both_weight});
    check_equal(r.read(d_x), r.read(both_x), "d_x");
    check_equal(r.read(d_weight), r.read(both_weight), "d_weight");
  });
}

TEST_CASE("linear, GELU and ReLU reproduce PyTorch's values and gradients") {
  const Json& golden = kernel_goldens().at("linear");
  for_each_wide_target([&](Runner& r) {
    const auto rows = static_cast<int64_t>(golden.at("input").as_array().size());
    const auto columns = static_cast<int64_t>(golden.at("weight").as_array().size());
    const auto depth = static_cast<int64_t>(golden.at("weight").as_array()[0].as_array().size());
    const Tolerance tolerance = r.tolerance(1e-14, 1e-6);
    const Tensor x = r.tensor(numbers(golden.at("input")), {rows, depth});
    const Tensor weight = r.tensor(numbers(golden.at("weight")), {columns, depth});
    const Tensor out = r.empty({rows, columns});
    linear_forward(r.stream(),
                   {.x = x, .weight = weight, .bias = r.tensor(numbers(golden.at("bias")), {columns}), .out = out});
    check_close(r.read(out), numbers(golden.at("output")), tolerance, "output");
    LinearBackwardArgs args{.d_out = r.tensor(numbers(golden.at("gradient_output")), {rows, columns}),
                            .x = x,
                            .weight = weight,
                            .d_x = r.empty({rows, depth}),
                            .d_weight = r.zeros({columns, depth}),
                            .d_bias = r.zeros({columns})};
    linear_backward(r.stream(), args);
    check_close(r.read(args.d_x), numbers(golden.at("gradient_input")), tolerance, "gradient of the input");
    check_close(r.read(args.d_weight), numbers(golden.at("gradient_weight")), tolerance, "gradient of the weight");
    check_close(r.read(args.d_bias), numbers(golden.at("gradient_bias")), tolerance, "gradient of the bias");
  });
  for (const auto& [name, activation] : {std::pair{"gelu", Activation::gelu}, std::pair{"relu", Activation::relu}}) {
    const Json& values = kernel_goldens().at(name);
    for_each_wide_target([&, activation = activation](Runner& r) {
      const Values input = numbers(values.at("input"));
      const auto n = static_cast<int64_t>(input.size());
      const Tolerance tolerance = r.tolerance(1e-14, 1e-6);
      const Tensor x = r.tensor(input, {n, 1});
      const Tensor weight = r.tensor({1}, {1, 1});
      const Tensor out = r.empty({n, 1});
      const Tensor pre = r.empty({n, 1});
      linear_forward(r.stream(),
                     {.x = x, .weight = weight, .out = out, .pre_activation = pre, .activation = activation});
      check_close(r.read(out), numbers(values.at("output")), tolerance, "output");
      const Tensor d_x = r.empty({n, 1});
      linear_backward(r.stream(), {.d_out = r.tensor(numbers(values.at("gradient_output")), {n, 1}),
                                   .weight = weight,
                                   .out = out,
                                   .pre_activation = pre,
                                   .d_x = d_x,
                                   .activation = activation});
      check_close(r.read(d_x), numbers(values.at("gradient_input")), tolerance, "gradient");
    });
  }
}

TEST_CASE("linear refuses wrong shapes, wrong dtypes and an activation on an accumulated output") {
  for_each_target([](Runner& r) {
    Runner other(device_name(r.device().kind()), r.dtype() == DType::f32 ? DType::f64 : DType::f32);
    const Tensor x = r.zeros({4, 3});
    const Tensor weight = r.zeros({2, 3});
    const Tensor out = r.zeros({4, 2});
    CHECK_THROWS_AS(linear_forward(r.stream(), {.x = x, .weight = r.zeros({2, 4}), .out = out}), Error);
    CHECK_THROWS_AS(linear_forward(r.stream(), {.x = x, .weight = weight, .out = r.zeros({4, 3})}), Error);
    CHECK_THROWS_AS(linear_forward(r.stream(), {.x = x, .weight = weight, .bias = r.zeros({3}), .out = out}), Error);
    CHECK_THROWS_AS(linear_forward(r.stream(), {.x = x, .weight = other.zeros({2, 3}), .out = out}), Error);
    CHECK_THROWS_AS(linear_forward(r.stream(), {.x = Tensor(), .weight = weight, .out = out}), Error);
    CHECK_THROWS_AS(
        linear_forward(r.stream(),
                       {.x = x, .weight = weight, .out = out, .activation = Activation::relu, .accumulate = true}),
        Error);
    CHECK_THROWS_AS(linear_backward(r.stream(), {.d_out = out, .weight = weight, .activation = Activation::relu}),
                    Error);
    CHECK_THROWS_AS(linear_backward(r.stream(), {.d_out = out, .weight = weight, .d_x = r.zeros({3, 3})}), Error);
    CHECK_THROWS_AS(linear_backward(r.stream(), {.d_out = out, .d_weight = weight}), Error);
  });
}
