#include "kernels/layer_norm.h"

#include <doctest/doctest.h>

#include <array>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct Reference {
  Values out, mean, rstd;
};

Reference reference(const Values& x, int64_t rows, int64_t hidden, const Values& gamma, const Values& beta) {
  Reference result{Values(x.size()), Values(static_cast<size_t>(rows)), Values(static_cast<size_t>(rows))};
  for (int64_t t = 0; t < rows; ++t) {
    const auto at = [&](int64_t h) { return static_cast<size_t>(t * hidden + h); };
    double mean = 0;
    for (int64_t h = 0; h < hidden; ++h) mean += x[at(h)] / static_cast<double>(hidden);
    double variance = 0;
    for (int64_t h = 0; h < hidden; ++h)
      variance += (x[at(h)] - mean) * (x[at(h)] - mean) / static_cast<double>(hidden);
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    result.mean[static_cast<size_t>(t)] = mean;
    result.rstd[static_cast<size_t>(t)] = rstd;
    for (int64_t h = 0; h < hidden; ++h) {
      const auto i = static_cast<size_t>(h);
      result.out[at(h)] = (x[at(h)] - mean) * rstd * (gamma.empty() ? 1 : gamma[i]) + (beta.empty() ? 0 : beta[i]);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("layer norm normalises the sum of input and residual, with and without parameters") {
  // Widths around a warp's and a block's registers, odd ones, and those of OPT.
  for (const auto& shape : {std::pair<int64_t, int64_t>{0, 8},
                            {1, 1},
                            {1, 7},
                            {63, 16},
                            {65, 33},
                            {129, 257},
                            {5, 768},
                            {3, 1025},
                            {2, 2048},
                            {2, 2560},
                            {2, 4099},
                            {1, 9216},
                            {1, 12288}}) {
    const int64_t rows = shape.first;
    const int64_t hidden = shape.second;
    const Values x = random_values(rows * hidden, 1);
    const Values residual = random_values(rows * hidden, 2);
    const Values gamma = random_values(hidden, 3);
    const Values beta = random_values(hidden, 4);
    for_each_target([&](Runner& r) {
      INFO("T = " << rows << ", H = " << hidden);
      // fp32: two sums over a row of standard normals.
      const Tolerance tolerance = r.tolerance(1e-12, 3e-6);
      const Tensor sums = r.empty({rows, hidden});
      const Tensor out = r.empty({rows, hidden}, hidden + 1);
      const Tensor mean = r.empty_statistics({rows});
      const Tensor rstd = r.empty_statistics({rows});
      layer_norm_forward(r.stream(), {r.tensor(x, {rows, hidden}), r.tensor(residual, {rows, hidden}), sums,
                                      r.tensor(gamma, {hidden}), r.tensor(beta, {hidden}), out, mean, rstd});
      // The sum is rounded to its dtype before it is normalised.
      Values sum = r.rounded(x);
      const Values added = r.rounded(residual);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
      if (!r.is_fp64()) sum = r.rounded(sum);
      const Reference expected = reference(sum, rows, hidden, r.rounded(gamma), r.rounded(beta));
      check_equal(r.read(sums), sum, "sum");
      check_close(r.read(out), expected.out, tolerance, "out");
      check_close(r.read(mean), expected.mean, r.is_fp64() ? 1e-12 : 3e-6, "mean");
      if (hidden > 1) check_close(r.read(rstd), expected.rstd, r.is_fp64() ? 1e-12 : 3e-6, "rstd");
      const Tensor plain = r.empty({rows, hidden});
      layer_norm_forward(r.stream(), {.x = r.tensor(x, {rows, hidden}), .out = plain});
      check_close(r.read(plain), reference(r.rounded(x), rows, hidden, {}, {}).out, tolerance, "no parameters");
    });
  }
}

TEST_CASE("layer norm may write over its input or its residual") {
  const Values x = random_values(5 * 12, 1);
  const Values residual = random_values(5 * 12, 2);
  for_each_target([&](Runner& r) {
    const Tensor separate = r.empty({5, 12});
    layer_norm_forward(
        r.stream(),
        {.x = r.tensor(x, {5, 12}), .residual = r.tensor(residual, {5, 12}), .sum = r.empty({5, 12}), .out = separate});
    const Tensor in_residual = r.tensor(residual, {5, 12});
    const Tensor out = r.empty({5, 12});
    layer_norm_forward(r.stream(),
                       {.x = r.tensor(x, {5, 12}), .residual = in_residual, .sum = in_residual, .out = out});
    check_equal(r.read(out), r.read(separate), "sum in the residual's memory");
    const Tensor in_x = r.tensor(x, {5, 12});
    layer_norm_forward(r.stream(),
                       {.x = in_x, .residual = r.tensor(residual, {5, 12}), .sum = r.empty({5, 12}), .out = in_x});
    check_equal(r.read(in_x), r.read(separate), "out in the input's memory");
  });
}

TEST_CASE("a row with a large common offset keeps its precision") {
  Values x = random_values(64, 1);
  for (double& value : x) value = double{static_cast<float>(value + 1000)};
  for_each_target([&](Runner& r) {
    const Reference expected = reference(r.rounded(x), 1, 64, {}, {});
    const Tensor out = r.empty({1, 64});
    layer_norm_forward(r.stream(), {.x = r.tensor(x, {1, 64}), .out = out});
    // fp32: the mean of values around 1000 is rounded to 6e-5.
    check_close(r.read(out), expected.out, r.tolerance(1e-11, 2e-4), "out");
  });
}

TEST_CASE("layer norm's gradients are those of central differences") {
  constexpr int64_t kRows = 4;
  constexpr int64_t kHidden = 6;
  const Values x = random_values(kRows * kHidden, 1);
  const Values gamma = random_values(kHidden, 2);
  const Values beta = random_values(kHidden, 3);
  const Values d_out = random_values(kRows * kHidden, 4);
  const Values d_residual = random_values(kRows * kHidden, 5);
  for_each_wide_target([&](Runner& r) {
    const auto loss = [&](const Values& input, const Values& weight, const Values& bias) {
      return weighted_sum(reference(input, kRows, kHidden, weight, bias).out, d_out) + weighted_sum(input, d_residual);
    };
    const Tensor sum = r.tensor(x, {kRows, kHidden});
    const Tensor mean = r.empty({kRows});
    const Tensor rstd = r.empty({kRows});
    layer_norm_forward(r.stream(), {.x = sum, .out = r.empty({kRows, kHidden}), .mean = mean, .rstd = rstd});
    const Tensor d_sum = r.tensor(d_residual, {kRows, kHidden});
    LayerNormBackwardArgs args{.d_out = r.tensor(d_out, {kRows, kHidden}),
                               .sum = sum,
                               .mean = mean,
                               .rstd = rstd,
                               .gamma = r.tensor(gamma, {kHidden}),
                               .d_residual = d_sum,
                               .d_sum = d_sum,
                               .d_gamma = r.zeros({kHidden}),
                               .d_beta = r.zeros({kHidden})};
    layer_norm_backward(r.stream(), args);
    const Tolerance tolerance = r.tolerance(1e-8, 3e-6);
    check_close(r.read(d_sum), numeric_gradient([&](const Values& v) { return loss(v, gamma, beta); }, x), tolerance,
                "d_sum");
    check_close(r.read(args.d_gamma), numeric_gradient([&](const Values& v) { return loss(x, v, beta); }, gamma),
                tolerance, "d_gamma");
    check_close(r.read(args.d_beta), numeric_gradient([&](const Values& v) { return loss(x, gamma, v); }, beta),
                tolerance, "d_beta");
  });
}

TEST_CASE("layer norm's gradients are those of fp64 for every width, with parameter gradients of both dtypes") {
  // 600 rows: more than one row for each block of the GPU's first pass.
  for (const auto& shape : {std::pair<int64_t, int64_t>{0, 8},
                            {1, 1},
                            {63, 16},
                            {65, 33},
                            {129, 257},
                            {600, 40},
                            {5, 768},
                            {9, 1025},
                            {7, 2048},
                            {3, 2560},
                            {3, 4099},
                            {2, 9216},
                            {2, 12288}}) {
    const int64_t rows = shape.first;
    const int64_t hidden = shape.second;
    const auto run = [&](Runner& r, bool wide_gradients) {
      LayerNormForwardArgs forward{.x = r.tensor(random_values(rows * hidden, 1), {rows, hidden}),
                                   .out = r.empty({rows, hidden}),
                                   .mean = r.empty_statistics({rows}),
                                   .rstd = r.empty_statistics({rows})};
      layer_norm_forward(r.stream(), forward);
      const auto gradient = [&](uint64_t seed) {
        const Values old = random_values(hidden, seed);
        return wide_gradients ? r.statistics(old, {hidden}) : r.tensor(old, {hidden});
      };
      LayerNormBackwardArgs args{.d_out = r.tensor(random_values(rows * hidden, 2), {rows, hidden}),
                                 .sum = forward.x,
                                 .mean = forward.mean,
                                 .rstd = forward.rstd,
                                 .gamma = r.tensor(random_values(hidden, 3), {hidden}),
                                 .d_residual = r.tensor(random_values(rows * hidden, 4), {rows, hidden}),
                                 .d_sum = r.empty({rows, hidden}, hidden + 8),
                                 .d_gamma = gradient(5),
                                 .d_beta = gradient(6)};
      layer_norm_backward(r.stream(), args);
      return std::array{r.read(args.d_sum), r.read(args.d_gamma), r.read(args.d_beta)};
    };
    for_each_target([&](Runner& r) {
      for (const bool wide_gradients : {true, false}) {
        INFO("T = " << rows << ", H = " << hidden);
        Runner oracle = Runner::oracle(r.dtype());
        const auto actual = run(r, wide_gradients);
        const auto expected = run(oracle, wide_gradients);
        const Tolerance tolerance =
            r.is_fp64() ? Tolerance(1e-12) : Tolerance::relative_norm(norm_tolerance(r.dtype()));
        check_close(actual[0], expected[0], tolerance, "d_sum");
        check_close(actual[1], expected[1], tolerance, "d_gamma");
        check_close(actual[2], expected[2], tolerance, "d_beta");
      }
    });
  }
}

TEST_CASE("layer norm reproduces PyTorch's values and gradients") {
  for (const Json& golden : kernel_goldens().at("layer_norm").as_array()) {
    const int64_t rows = golden.at("rows").as_int();
    const int64_t hidden = golden.at("width").as_int();
    const bool affine = golden.at("affine").as_bool();
    for_each_wide_target([&](Runner& r) {
      // fp32: one case's inputs lie around 100, where they are rounded by 4e-6.
      const Tolerance tolerance = r.tolerance(1e-12, 2e-5);
      const Tensor x = r.tensor(numbers(golden.at("input")), {rows, hidden});
      const Tensor gamma = affine ? r.tensor(numbers(golden.at("weight")), {hidden}) : Tensor();
      const Tensor beta = affine ? r.tensor(numbers(golden.at("bias")), {hidden}) : Tensor();
      LayerNormForwardArgs forward{.x = x,
                                   .gamma = gamma,
                                   .beta = beta,
                                   .out = r.empty({rows, hidden}),
                                   .mean = r.empty({rows}),
                                   .rstd = r.empty({rows}),
                                   .epsilon = golden.at("eps").as_double()};
      layer_norm_forward(r.stream(), forward);
      check_close(r.read(forward.out), numbers(golden.at("output")), tolerance, "output");
      check_close(r.read(forward.mean), numbers(golden.at("mean")), tolerance, "mean");
      check_close(r.read(forward.rstd), numbers(golden.at("rstd")), tolerance, "rstd");
      LayerNormBackwardArgs args{.d_out = r.tensor(numbers(golden.at("gradient_output")), {rows, hidden}),
                                 .sum = x,
                                 .mean = forward.mean,
                                 .rstd = forward.rstd,
                                 .gamma = gamma,
                                 .d_sum = r.empty({rows, hidden}),
                                 .d_gamma = affine ? r.zeros({hidden}) : Tensor(),
                                 .d_beta = affine ? r.zeros({hidden}) : Tensor()};
      layer_norm_backward(r.stream(), args);
      check_close(r.read(args.d_sum), numbers(golden.at("gradient_input")), tolerance, "gradient of the input");
      if (!affine) return;
      check_close(r.read(args.d_gamma), numbers(golden.at("gradient_weight")), tolerance, "gradient of the weight");
      check_close(r.read(args.d_beta), numbers(golden.at("gradient_bias")), tolerance, "gradient of the bias");
    });
  }
}

TEST_CASE("layer norm refuses wrong shapes and a residual without its sum") {
  for_each_target([](Runner& r) {
    const Tensor x = r.zeros({2, 4});
    CHECK_THROWS_AS(layer_norm_forward(r.stream(), {.x = x, .out = r.zeros({2, 5})}), Error);
    CHECK_THROWS_AS(layer_norm_forward(r.stream(), {.x = x, .gamma = r.zeros({5}), .out = x}), Error);
    CHECK_THROWS_AS(layer_norm_forward(r.stream(), {.x = x, .residual = x, .out = x}), Error);
    CHECK_THROWS_AS(layer_norm_forward(r.stream(), {.x = x, .out = x, .mean = r.zero_statistics({3})}), Error);
    CHECK_THROWS_AS(
        layer_norm_backward(
            r.stream(),
            {.d_out = x, .sum = x, .mean = r.zero_statistics({2}), .rstd = r.zero_statistics({3}), .d_sum = x}),
        Error);
  });
}
