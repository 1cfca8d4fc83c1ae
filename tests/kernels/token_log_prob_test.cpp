#include "kernels/token_log_prob.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct Reference {
  Values log_prob, log_sum_exp, entropy, likeliest;
};

Reference reference(const Values& logits, const std::vector<int32_t>& targets, double temperature) {
  Reference result;
  const size_t vocabulary = targets.empty() ? 0 : logits.size() / targets.size();
  for (size_t r = 0; r < targets.size(); ++r) {
    double max = -INFINITY;
    for (size_t j = 0; j < vocabulary; ++j) max = std::max(max, logits[r * vocabulary + j] / temperature);
    double sum = 0;
    for (size_t j = 0; j < vocabulary; ++j) sum += std::exp(logits[r * vocabulary + j] / temperature - max);
    const double log_sum_exp = max + std::log(sum);
    double entropy = 0;
    for (size_t j = 0; j < vocabulary; ++j) {
      const double log_p = logits[r * vocabulary + j] / temperature - log_sum_exp;
      if (std::exp(log_p) > 0) entropy -= std::exp(log_p) * log_p;
    }
    const double target = logits[r * vocabulary + static_cast<size_t>(targets[r])];
    result.log_prob.push_back(target / temperature - log_sum_exp);
    const auto row = logits.begin() + static_cast<int64_t>(r * vocabulary);
    result.likeliest.push_back(target == *std::max_element(row, row + static_cast<int64_t>(vocabulary)) ? 1 : 0);
    result.log_sum_exp.push_back(log_sum_exp);
    result.entropy.push_back(entropy);
  }
  return result;
}

struct Outputs {
  Tensor logits, targets, log_prob, log_sum_exp, entropy, likeliest;
};

Outputs forward(Runner& r, const Values& logits, const std::vector<int32_t>& targets, double temperature) {
  const auto rows = static_cast<int64_t>(targets.size());
  const auto vocabulary = static_cast<int64_t>(logits.size()) / std::max<int64_t>(rows, 1);
  Outputs o{r.tensor(logits, {rows, vocabulary}), r.int32s(targets),          r.empty_statistics({rows}),
            r.empty_statistics({rows}),           r.empty_statistics({rows}), r.empty_statistics({rows})};
  token_log_prob_forward(r.stream(),
                         {o.logits, o.targets, o.log_prob, o.log_sum_exp, o.entropy, o.likeliest, temperature});
  return o;
}

}  // namespace

TEST_CASE("log-probabilities and entropies are those of the softmax, for prime and large vocabularies") {
  for (const auto& [rows, vocabulary] :
       {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {63, 97}, {65, 257}, {2, 10007}, {3, 50272}})
    for (const double temperature : {1.0, 0.7}) {
      const Values logits = random_values(rows * vocabulary, 1, 3);
      const std::vector<int32_t> targets = random_ids(rows, vocabulary, 2);
      for_each_target([&](Runner& r) {
        const Reference expected = reference(r.rounded(logits), targets, temperature);
        const Outputs o = forward(r, logits, targets, temperature);
        // fp32, which statistics of 16-bit logits are too: exp of exponents up to 20 that are rounded to 1e-6.
        const double tolerance = r.is_fp64() ? 1e-13 : 1e-6;
        check_close(r.read(o.log_prob), expected.log_prob, tolerance, "log_prob");
        check_close(r.read(o.log_sum_exp), expected.log_sum_exp, tolerance, "log_sum_exp");
        check_close(r.read(o.entropy), expected.entropy, tolerance, "entropy");
        CHECK(r.read(o.likeliest) == expected.likeliest);
      });
    }
}

TEST_CASE("a target is the likeliest token when none is larger: ties count, and where it stands does not") {
  const int64_t vocabulary = 1003;
  Values logits;
  std::vector<int32_t> targets;
  Values expected;
  const auto add = [&](int32_t target, double value, int32_t other, double other_value) {
    Values row(static_cast<size_t>(vocabulary), -3);
    row[static_cast<size_t>(other)] = other_value;
    row[static_cast<size_t>(target)] = value;
    logits.insert(logits.end(), row.begin(), row.end());
    targets.push_back(target);
    expected.push_back(value >= other_value ? 1 : 0);
  };
  for (const int32_t at : {0, 1, 7, 8, 127, 500, 1001, 1002}) {
    add(at, 2, (at + 1) % 1003, 1);
    add(at, 2, (at + 501) % 1003, 2);
    add(at, 2, (at + 1002) % 1003, 2.5);
  }
  for_each_target([&](Runner& r) { CHECK(r.read(forward(r, logits, targets, 0.7).likeliest) == expected); });
}

TEST_CASE("the worked example at temperatures 1 and 0.7, and the ratio when the temperature is forgotten") {
  const Json& golden = rlhf_goldens().at("logits").at("example");
  const Values logits = numbers(golden.at("logits"));
  Values three;
  for (int i = 0; i < 3; ++i) three.insert(three.end(), logits.begin(), logits.end());
  for_each_wide_target([&](Runner& r) {
    const Tolerance tolerance = r.tolerance(1e-14, 3e-7);
    const Values plain = r.read(forward(r, three, {0, 1, 2}, 1).log_prob);
    const Outputs cold = forward(r, three, {0, 1, 2}, 0.7);
    check_close(plain, numbers(golden.at("logprobs_t1")), tolerance, "T = 1");
    check_close(r.read(cold.log_prob), numbers(golden.at("logprobs_t07")), tolerance, "T = 0.7");
    const double entropy1 = golden.at("entropy_t1").as_double();
    const double entropy07 = golden.at("entropy_t07").as_double();
    check_close(r.read(forward(r, three, {0, 1, 2}, 1).entropy), {entropy1, entropy1, entropy1}, tolerance, "entropy");
    check_close(r.read(cold.entropy), {entropy07, entropy07, entropy07}, tolerance, "entropy at 0.7");
    check_close({std::exp(plain[1] - r.read(cold.log_prob)[1])}, {golden.at("ratio_when_forgotten_token1").as_double()},
                tolerance, "ratio");
  });
}

TEST_CASE("log-probabilities, entropies and their gradients reproduce PyTorch's") {
  for (const Json& golden : rlhf_goldens().at("logits").at("random").as_array()) {
    const Values logits = numbers(golden.at("logits"));
    const std::vector<int32_t> targets = integers(golden.at("targets"));
    const double temperature = golden.at("temperature").as_double();
    const auto rows = static_cast<int64_t>(targets.size());
    for_each_wide_target([&](Runner& r) {
      const Tolerance tolerance = r.tolerance(1e-13, 1e-6);
      const Outputs o = forward(r, logits, targets, temperature);
      check_close(r.read(o.log_prob), numbers(golden.at("logprobs")), tolerance, "logprobs");
      check_close(r.read(o.entropy), numbers(golden.at("entropies")), tolerance, "entropies");
      const Tensor ones = r.tensor(Values(targets.size(), 1.0), {rows});
      token_log_prob_backward(r.stream(), {o.logits, o.targets, o.log_sum_exp, Tensor(), ones, Tensor(), temperature});
      check_close(r.read(o.logits), numbers(golden.at("gradient_of_logprobs")), tolerance, "gradient of logprobs");
      const Outputs again = forward(r, logits, targets, temperature);
      token_log_prob_backward(r.stream(), {again.logits, again.targets, again.log_sum_exp, again.entropy,
                                           r.zeros({rows}), ones, temperature});
      check_close(r.read(again.logits), numbers(golden.at("gradient_of_entropies")), tolerance,
                  "gradient of entropies");
    });
  }
}

TEST_CASE("the gradient of log-probability and entropy is that of central differences") {
  const Values logits = random_values(4 * 7, 1, 2);
  const std::vector<int32_t> targets = {3, 0, 6, 3};
  const Values d_log_prob = random_values(4, 2);
  const Values d_entropy = random_values(4, 3);
  for (const bool with_entropy : {false, true}) {
    for_each_target([&](Runner& r) {
      const Values expected = numeric_gradient(
          [&](const Values& x) {
            const Reference values = reference(x, targets, 0.7);
            return weighted_sum(values.log_prob, d_log_prob) +
                   (with_entropy ? weighted_sum(values.entropy, d_entropy) : 0);
          },
          r.rounded(logits));
      const Outputs o = forward(r, logits, targets, 0.7);
      token_log_prob_backward(
          r.stream(), {o.logits, o.targets, o.log_sum_exp, with_entropy ? o.entropy : Tensor(),
                       r.statistics(d_log_prob, {4}), with_entropy ? r.statistics(d_entropy, {4}) : Tensor(), 0.7});
      check_close(r.read(o.logits), expected, r.tolerance(1e-9, 1e-6), "gradient");
    });
  }
}

TEST_CASE("logits of 10000 give finite and right values, alone and in a large vocabulary") {
  const Values logits = {1e4, 0, -1e4, 9999, 1e4, 1e4, 1e4, 1e4, -1e4, 3e4, 0, 0};
  const std::vector<int32_t> targets = {1, 0, 1};
  for_each_target([&](Runner& r) {
    const Reference expected = reference(r.rounded(logits), targets, 1);
    const Outputs o = forward(r, logits, targets, 1);
    check_close(r.read(o.log_prob), expected.log_prob, r.is_fp64() ? 1e-12 : 1e-7, "log_prob");
    check_close(r.read(o.entropy), expected.entropy, r.is_fp64() ? 1e-11 : 1e-6, "entropy");
    token_log_prob_backward(r.stream(), {o.logits, o.targets, o.log_sum_exp, o.entropy, r.statistics({1, 1, 1}, {3}),
                                         r.statistics({1, 1, 1}, {3}), 1});
    // fp32: log_sum_exp near 10000 is rounded to 5e-4, and the probabilities with it.
    const Values gradient = r.read(o.logits);
    check_close({gradient.begin() + 4, gradient.begin() + 8}, {0.75, -0.25, -0.25, -0.25}, r.tolerance(1e-11, 2e-3),
                "gradient of equal logits");
    Values wide = random_values(20011, 1, 3);
    wide[17011] = 1e4;
    const std::vector<int32_t> one = {5};
    const Reference expected_wide = reference(r.rounded(wide), one, 1);
    const Outputs w = forward(r, wide, one, 1);
    check_close(r.read(w.log_prob), expected_wide.log_prob, r.is_fp64() ? 1e-12 : 1e-7, "log_prob, large vocabulary");
    check_close(r.read(w.entropy), expected_wide.entropy, r.is_fp64() ? 1e-11 : 1e-6, "entropy, large vocabulary");
  });
}

TEST_CASE("the gradient of a large vocabulary is that of fp64, for rows of any alignment") {
  for (const int64_t vocabulary : {4099, 50272}) {
    const auto run = [vocabulary](Runner& r) {
      const Outputs o = forward(r, random_values(2 * vocabulary, 1, 3), {7, 4000}, 0.7);
      token_log_prob_backward(r.stream(), {o.logits, o.targets, o.log_sum_exp, o.entropy, r.statistics({0.5, -2}, {2}),
                                           r.statistics({1, 0.25}, {2}), 0.7});
      return r.read(o.logits);
    };
    for_each_target([&](Runner& r) {
      Runner oracle = Runner::oracle(r.dtype());
      check_close(run(r), run(oracle), Tolerance::relative_norm(r.is_fp64() ? 1e-13 : norm_tolerance(r.dtype())),
                  "gradient");
    });
  }
}

TEST_CASE("a logit of minus infinity has no probability, a NaN makes its row NaN and no other") {
  for_each_target([](Runner& r) {
    const Outputs o = forward(r, {0, -INFINITY, 0, 0, NAN, 0}, {0, 0}, 1);
    const Values log_prob = r.read(o.log_prob);
    const Values entropy = r.read(o.entropy);
    CHECK(log_prob[0] == doctest::Approx(-std::log(2.0)).epsilon(1e-6));
    CHECK(entropy[0] == doctest::Approx(std::log(2.0)).epsilon(1e-6));
    CHECK(std::isnan(log_prob[1]));
    CHECK(std::isnan(entropy[1]));
  });
}

TEST_CASE("on the CPU token log-probability names the first target outside the vocabulary") {
  for_each_cpu_target([](Runner& r) {
    const Tensor rows = r.zeros({3});
    CHECK_THROWS_WITH_AS(
        token_log_prob_forward(r.stream(), {r.zeros({3, 4}), r.int32s({0, 4, -1}), rows, Tensor(), Tensor()}),
        doctest::Contains("targets[1] = 4"), Error);
  });
}

TEST_CASE("token log-probability refuses wrong shapes") {
  for_each_target([](Runner& r) {
    const Tensor logits = r.zeros({3, 4});
    const Tensor rows = r.zero_statistics({3});
    const Tensor two = r.zero_statistics({2});
    const Tensor targets = r.int32s({0, 1, 3});
    CHECK_THROWS_AS(token_log_prob_forward(r.stream(), {logits, r.int32s({0, 1}), rows, Tensor(), Tensor()}), Error);
    CHECK_THROWS_AS(token_log_prob_forward(r.stream(), {logits, targets, two, Tensor(), Tensor()}), Error);
    CHECK_THROWS_AS(token_log_prob_forward(r.stream(), {logits, targets, rows, Tensor(), Tensor(), two}), Error);
    CHECK_THROWS_AS(token_log_prob_forward(r.stream(), {logits, targets, rows, Tensor(), Tensor(), Tensor(), 0.0}),
                    Error);
    CHECK_THROWS_AS(token_log_prob_backward(r.stream(), {logits, targets, rows, Tensor(), rows, rows}), Error);
  });
}
