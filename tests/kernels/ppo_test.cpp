#include "kernels/ppo.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct Advantages {
  Values advantages, returns;
};

Advantages estimate(Runner& r, const Values& rewards, const Values& values, const std::vector<int32_t>& offsets,
                    double gamma, double lambda) {
  const auto n = static_cast<int64_t>(rewards.size());
  const Tensor advantages = r.empty({n});
  const Tensor returns = r.empty({n});
  gae(r.stream(),
      {r.tensor(rewards, {n}), r.tensor(values, {n}), r.int32s(offsets), advantages, returns, gamma, lambda});
  return {r.read(advantages), r.read(returns)};
}

Values whitened(Runner& r, const Values& x) {
  const auto n = static_cast<int64_t>(x.size());
  const Tensor tensor = r.tensor(x, {n});
  const Tensor sums = r.doubles({NAN, NAN});
  centered_sums(r.stream(), {tensor, sums, 0});
  const double mean = r.read(sums)[0] / static_cast<double>(n);
  centered_sums(r.stream(), {tensor, sums, mean});
  whiten(r.stream(), {tensor, mean, r.read(sums)[1] / static_cast<double>(n)});
  return r.read(tensor);
}

struct PolicyInputs {
  Values log_prob, old_log_prob, advantages, entropy;
};

struct PolicyOutputs {
  Values d_log_prob, d_entropy, statistics;
  double max_ratio_deviation;
};

PolicyOutputs policy(Runner& r, const PolicyInputs& in, double entropy_coef = 0, double scale = 1) {
  const auto n = static_cast<int64_t>(in.log_prob.size());
  PpoPolicyLossArgs args{.log_prob = r.tensor(in.log_prob, {n}),
                         .old_log_prob = r.tensor(in.old_log_prob, {n}),
                         .advantages = r.tensor(in.advantages, {n}),
                         .d_log_prob = r.empty({n}),
                         .statistics = r.doubles(Values(8, 0.0)),
                         .max_ratio_deviation = r.doubles({0}),
                         .entropy_coef = entropy_coef,
                         .scale = scale};
  if (!in.entropy.empty()) {
    args.entropy = r.tensor(in.entropy, {n});
    args.d_entropy = r.empty({n});
  }
  ppo_policy_loss(r.stream(), args);
  return {r.read(args.d_log_prob), in.entropy.empty() ? Values() : r.read(args.d_entropy), r.read(args.statistics),
          r.read(args.max_ratio_deviation)[0]};
}

double policy_reference(const PolicyInputs& in, double entropy_coef) {
  double sum = 0;
  for (size_t t = 0; t < in.log_prob.size(); ++t) {
    const double ratio = std::exp(std::clamp(in.log_prob[t] - in.old_log_prob[t], -20.0, 20.0));
    sum += std::max(-in.advantages[t] * ratio, -in.advantages[t] * std::clamp(ratio, 0.8, 1.2));
    if (!in.entropy.empty()) sum -= entropy_coef * in.entropy[t];
  }
  return sum;
}

}  // namespace

TEST_CASE("GAE gives the golden advantages and returns, NeMo's and ROLL's examples among them") {
  for (const Json& golden : rlhf_goldens().at("gae").as_array())
    for_each_wide_target([&](Runner& r) {
      const Advantages actual =
          estimate(r, numbers(golden.at("rewards")), numbers(golden.at("values")), integers(golden.at("offsets")),
                   golden.at("gamma").as_double(), golden.at("lambda").as_double());
      check_close(actual.advantages, numbers(golden.at("advantages")), r.tolerance(1e-14, 1e-6), "advantages");
      check_close(actual.returns, numbers(golden.at("returns")), r.tolerance(1e-14, 1e-6), "returns");
    });
}

TEST_CASE("values of other responses and beyond the last token do not leak into GAE") {
  for_each_wide_target([](Runner& r) {
    const Tolerance tolerance = r.tolerance(1e-14, 1e-6);
    // ROLL #447: a value of 100 after the end gave [5.7, 6].
    const Advantages roll = estimate(r, {0, 1, 0}, {0, 0, 100}, {0, 2, 3}, 1, 0.95);
    check_close({roll.advantages[0], roll.advantages[1]}, {0.95, 1}, tolerance, "first response");
    // The worked example followed by a response whose values are 100: [5.07904375, ...] when they leak.
    const Advantages worked =
        estimate(r, {-.01, .005, -.0025, 1, 0, 0}, {.1, .2, .3, .4, 100, 100}, {0, 4, 6}, 1, 0.95);
    check_close({worked.advantages.begin(), worked.advantages.begin() + 4}, {.79216875, .739125, .6675, .6}, tolerance,
                "worked example");
    CHECK(std::abs(worked.advantages[0] - 5.07904375) > 4);
  });
}

TEST_CASE("whitening uses the population variance") {
  const Json& whitening = rlhf_goldens().at("whitening");
  for (const Json& golden : whitening.at("cases").as_array())
    for_each_wide_target([&](Runner& r) {
      const Values actual = whitened(r, numbers(golden.at("input")));
      check_close(actual, numbers(golden.at("population")), r.tolerance(1e-13, 1e-5), "population");
      CHECK(std::abs(actual[0] - numbers(golden.at("bessel"))[0]) > 0.01);
    });
}

TEST_CASE("whitening a constant or a single value gives zeros, and no value is legal") {
  for_each_wide_target([](Runner& r) {
    check_close(whitened(r, {0.5, 0.5, 0.5}), {0, 0, 0}, 0, "constant");
    check_close(whitened(r, {3}), {0}, 0, "single");
    const Tensor sums = r.doubles({NAN, NAN});
    centered_sums(r.stream(), {r.empty({0}), sums, 7});
    check_equal(r.read(sums), {0, 0}, "sums of nothing");
  });
}

TEST_CASE("rewards are the KL penalty per token plus the normalised, clipped score at the last token") {
  const Json& golden = rlhf_goldens().at("token_rewards");
  const Values log_prob = numbers(golden.at("logprobs"));
  const auto n = static_cast<int64_t>(log_prob.size());
  std::vector<uint8_t> terminated;
  for (const double ended : numbers(golden.at("ended"))) terminated.push_back(ended != 0 ? 1 : 0);
  for_each_wide_target([&](Runner& r) {
    RewardShapingArgs args{.log_prob = r.tensor(log_prob, {n}),
                           .reference_log_prob = r.tensor(numbers(golden.at("reference_logprobs")), {n}),
                           .scores = r.tensor(numbers(golden.at("scores")), {4}),
                           .terminated = r.bytes(terminated),
                           .offsets = r.int32s(integers(golden.at("offsets"))),
                           .rewards = r.empty({n}),
                           .kl_coef = golden.at("beta").as_double(),
                           .score_mean = golden.at("score_mean").as_double(),
                           .score_sd = golden.at("score_sd").as_double(),
                           .reward_clip = golden.at("reward_clip").as_double(),
                           .missing_eos_penalty = golden.at("missing_eos_penalty").as_double()};
    reward_shaping(r.stream(), args);
    check_close(r.read(args.rewards), numbers(golden.at("rewards")), r.tolerance(1e-14, 1e-6), "rewards");
  });
  for_each_wide_target([](Runner& r) {
    RewardShapingArgs args{.log_prob = r.tensor({.2, -.1, .05, 0}, {4}),
                           .reference_log_prob = r.zeros({4}),
                           .scores = r.tensor({1}, {1}),
                           .terminated = r.bytes({1}),
                           .offsets = r.int32s({0, 4}),
                           .rewards = r.empty({4}),
                           .kl_coef = .05};
    reward_shaping(r.stream(), args);
    check_close(r.read(args.rewards), {-.01, .005, -.0025, 1}, r.tolerance(1e-14, 1e-7), "worked example");
  });
}

TEST_CASE("the clipped policy loss gives the golden values") {
  for (const Json& c : rlhf_goldens().at("policy_loss").at("cases").as_array())
    for_each_wide_target([&](Runner& r) {
      const PolicyOutputs out =
          policy(r, {{std::log(c.at("ratio").as_double())}, {0}, {c.at("advantage").as_double()}, {}});
      check_close({out.statistics[0]}, {c.at("loss").as_double()}, r.tolerance(1e-14, 1e-6), "loss");
    });
  for (const Json& golden : rlhf_goldens().at("policy_loss").at("random").as_array()) {
    const PolicyInputs in{
        numbers(golden.at("new_logprobs")), numbers(golden.at("old_logprobs")), numbers(golden.at("advantages")), {}};
    const auto n = static_cast<double>(in.log_prob.size());
    for_each_wide_target([&](Runner& r) {
      const PolicyOutputs out = policy(r, in, 0, 1 / n);
      // fp32: a log-ratio of 20 is rounded to 1e-6, and its exponential by as much relative.
      const Tolerance tolerance = r.tolerance(1e-13, 1e-5);
      INFO(golden.at("name").as_string());
      check_close(out.d_log_prob, numbers(golden.at("gradient_new_logprobs")), tolerance, "gradient");
      check_close({out.statistics[0] / n}, {golden.at("loss").as_double()}, tolerance, "loss");
      check_close({out.statistics[1] / n}, {golden.at("clip_fraction_low").as_double()}, 1e-14, "clip fraction, low");
      check_close({out.statistics[2] / n}, {golden.at("clip_fraction_high").as_double()}, 1e-14, "clip fraction, high");
      check_close({out.statistics[3] / n}, {golden.at("approx_kl").as_double()}, tolerance, "approx_kl");
      check_close({out.statistics[4] / n}, {golden.at("ratio_mean").as_double()}, tolerance, "ratio_mean");
    });
  }
}

TEST_CASE("the policy loss's gradients are those of central differences away from the clip") {
  const PolicyInputs in{random_values(40, 1, 0.5), random_values(40, 2, 0.5), random_values(40, 3),
                        random_values(40, 4)};
  PolicyInputs changed = in;
  const Values expected = numeric_gradient(
      [&](const Values& x) {
        changed.log_prob = x;
        return 0.25 * policy_reference(changed, 0.1);
      },
      in.log_prob);
  for_each_wide_target([&](Runner& r) {
    const PolicyOutputs out = policy(r, in, 0.1, 0.25);
    check_close(out.d_log_prob, expected, r.tolerance(1e-9, 1e-6), "d_log_prob");
    check_close(out.d_entropy, Values(40, -0.025), r.tolerance(1e-15, 1e-7), "d_entropy");
    CHECK(out.statistics[0] == doctest::Approx(policy_reference({in.log_prob, in.old_log_prob, in.advantages, {}}, 0)));
  });
}

TEST_CASE("the policy loss's statistics are KL estimators and ratios, zero and one at equal log-probabilities") {
  for (const Json& golden : rlhf_goldens().at("kl_estimators").as_array())
    for_each_wide_target([&](Runner& r) {
      // The old policy is sampled from: its log-ratio to the new one is old - new.
      const PolicyOutputs out = policy(r, {{0}, {golden.at("log_ratio").as_double()}, {1}, {}});
      check_close({out.statistics[3]}, {golden.at("k2").as_double()}, r.tolerance(1e-14, 1e-6), "k2");
      check_close({out.statistics[6]}, {golden.at("k3").as_double()}, r.tolerance(1e-14, 1e-6), "k3");
    });
  for_each_wide_target([](Runner& r) {
    const Values x = random_values(65, 1);
    const PolicyOutputs out = policy(r, {x, x, random_values(65, 2), {}});
    check_equal({out.statistics.begin() + 1, out.statistics.begin() + 7}, {0, 0, 0, 65, 65, 0}, "statistics");
    CHECK(out.max_ratio_deviation == 0);
  });
}

TEST_CASE("the largest deviation of the ratio keeps a NaN and accumulates over calls") {
  for_each_wide_target([](Runner& r) {
    CHECK(std::isnan(policy(r, {{0, NAN, 0.1}, {0, 0, 0}, {1, 1, 1}, {}}).max_ratio_deviation));
    const Tensor one = r.tensor({std::log(1.5)}, {1});
    const Tensor zero = r.zeros({1});
    PpoPolicyLossArgs args{.log_prob = one,
                           .old_log_prob = zero,
                           .advantages = zero,
                           .d_log_prob = r.empty({1}),
                           .statistics = r.doubles(Values(8, 0.0)),
                           .max_ratio_deviation = r.doubles({0.25})};
    ppo_policy_loss(r.stream(), args);
    args.log_prob = zero;
    ppo_policy_loss(r.stream(), args);
    CHECK(r.read(args.max_ratio_deviation)[0] == doctest::Approx(0.5).epsilon(1e-6));
    CHECK(r.read(args.statistics)[4] == doctest::Approx(2.5).epsilon(1e-6));
  });
}

TEST_CASE("the clipped value loss gives the golden values and gradients") {
  const Json& golden = rlhf_goldens().at("value_loss");
  const auto run = [](Runner& r, const Values& values, const Values& old_values, const Values& returns, double scale) {
    const auto n = static_cast<int64_t>(values.size());
    PpoValueLossArgs args{.values = r.tensor(values, {n}),
                          .old_values = r.tensor(old_values, {n}),
                          .returns = r.tensor(returns, {n}),
                          .d_values = r.empty({n}),
                          .statistics = r.doubles(Values(4, 0.0)),
                          .scale = scale};
    ppo_value_loss(r.stream(), args);
    return std::pair{r.read(args.d_values), r.read(args.statistics)};
  };
  for_each_wide_target([&](Runner& r) {
    for (const Json& c : golden.at("cases").as_array()) {
      const auto [gradient, statistics] =
          run(r, {c.at("value").as_double()}, {c.at("old_value").as_double()}, {c.at("return").as_double()}, 1);
      check_close({statistics[0]}, {c.at("loss").as_double()}, r.tolerance(1e-14, 1e-6), "loss");
    }
    const Json& random = golden.at("random");
    const Values values = numbers(random.at("values"));
    const auto n = static_cast<double>(values.size());
    const auto [gradient, statistics] =
        run(r, values, numbers(random.at("old_values")), numbers(random.at("returns")), 1 / n);
    check_close(gradient, numbers(random.at("gradient_values")), r.tolerance(1e-14, 1e-6), "gradient");
    check_close({statistics[0] / n}, {random.at("loss").as_double()}, r.tolerance(1e-14, 1e-6), "loss");
    check_close({statistics[1] / n}, {random.at("clip_fraction").as_double()}, 1e-14, "clip fraction");
    double sum = 0;
    for (const double value : values) sum += value;
    check_close({statistics[2]}, {sum}, r.tolerance(1e-14, 1e-6), "sum of values");
  });
}

TEST_CASE("GAE, sums and losses are those of fp64 for any number of tokens") {
  for (const std::vector<int32_t>& lengths :
       std::vector<std::vector<int32_t>>{{}, {0}, {1}, {0, 31, 0, 32}, {33, 64, 65, 1}, {500, 3, 129}}) {
    const std::vector<int32_t> offsets = offsets_of(lengths);
    const auto n = static_cast<int64_t>(offsets.back());
    for_each_wide_target([&](Runner& r) {
      Runner oracle = Runner::oracle(r.dtype());
      // One rounding of fp64 arithmetic on the same inputs.
      const Tolerance rounding = r.tolerance(1e-14, 1e-7);
      const Values values = random_values(n, 2);
      const Advantages actual = estimate(r, random_values(n, 1), values, offsets, 0.99, 0.95);
      const Advantages expected = estimate(oracle, random_values(n, 1), values, offsets, 0.99, 0.95);
      check_close(actual.advantages, expected.advantages, rounding, "advantages");
      check_close(actual.returns, expected.returns, rounding, "returns");
      if (n > 0) check_close(whitened(r, values), whitened(oracle, values), r.tolerance(1e-13, 1e-6), "whitened");
      const PolicyInputs in{random_values(n, 1, 0.3), random_values(n, 2, 0.3), values, random_values(n, 4)};
      const double entropy_coef = n > 0 ? 0.1 : 0;  // without tokens there is no entropy
      const PolicyOutputs policy_actual = policy(r, in, entropy_coef, 0.5);
      const PolicyOutputs policy_expected = policy(oracle, in, entropy_coef, 0.5);
      check_close(policy_actual.d_log_prob, policy_expected.d_log_prob, rounding, "d_log_prob");
      check_close(policy_actual.statistics, policy_expected.statistics, 1e-12, "statistics");
      check_close({policy_actual.max_ratio_deviation}, {policy_expected.max_ratio_deviation}, 1e-12, "deviation");
    });
  }
}

TEST_CASE("on the CPU offsets must cover the tokens, and every response that is rewarded has one") {
  for_each_cpu_target([](Runner& r) {
    const Tensor x = r.zeros({4});
    const Tensor y = r.zeros({4});
    CHECK_THROWS_AS(gae(r.stream(), {x, x, r.int32s({0, 3}), y, y}), Error);
    const Tensor none = r.zeros({0});
    CHECK_THROWS_AS(reward_shaping(r.stream(), {.log_prob = none,
                                                .reference_log_prob = none,
                                                .scores = r.tensor({1}, {1}),
                                                .terminated = r.bytes({1}),
                                                .offsets = r.int32s({0, 0}),
                                                .rewards = none}),
                    Error);
  });
}

TEST_CASE("a GPU rounds the value's gradient to the dtype of the score head") {
  for (const std::string& device : present_gpu_devices())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Runner r(device, dtype);
      const Tensor d_values = r.empty({2});
      ppo_value_loss(r.stream(), {.values = r.statistics({1, -0.5}, {2}),
                                  .old_values = r.statistics({0.9, 3}, {2}),
                                  .returns = r.statistics({0.7, -0.6}, {2}),
                                  .d_values = d_values,
                                  .statistics = r.doubles(Values(4, 0.0))});
      const Values inputs = r.read(r.statistics({1, 0.7}, {2}));
      check_equal(r.read(d_values), {r.rounded({inputs[0] - inputs[1]})[0], 0}, "d_values");
    }
}

TEST_CASE("PPO's ops refuse wrong shapes and dtypes") {
  for_each_wide_target([](Runner& r) {
    Runner other(device_name(r.device().kind()), r.is_fp64() ? DType::f32 : DType::f64);
    const Tensor x = r.zeros({4});
    const Tensor y = r.zeros({4});
    const Tensor offsets = r.int32s({0, 4});
    CHECK_THROWS_AS(gae(r.stream(), {x, r.zeros({3}), offsets, y, y}), Error);
    CHECK_THROWS_AS(gae(r.stream(), {x, other.zeros({4}), offsets, y, y}), Error);
    CHECK_THROWS_AS(centered_sums(r.stream(), {x, r.doubles({0})}), Error);
    CHECK_THROWS_AS(whiten(r.stream(), {r.zeros({2, 2})}), Error);
    PpoPolicyLossArgs policy_args{.log_prob = x,
                                  .old_log_prob = x,
                                  .advantages = x,
                                  .d_log_prob = y,
                                  .statistics = r.doubles(Values(8, 0.0)),
                                  .max_ratio_deviation = r.doubles({0})};
    CHECK_NOTHROW(ppo_policy_loss(r.stream(), policy_args));
    policy_args.entropy_coef = 0.1;
    CHECK_THROWS_AS(ppo_policy_loss(r.stream(), policy_args), Error);
    policy_args.entropy = x;
    CHECK_THROWS_AS(ppo_policy_loss(r.stream(), policy_args), Error);
    CHECK_THROWS_AS(ppo_value_loss(r.stream(), {x, x, x, r.zeros({3}), r.doubles(Values(4, 0.0))}), Error);
    CHECK_THROWS_AS(ppo_value_loss(r.stream(), {x, x, x, y, r.doubles(Values(3, 0.0))}), Error);
  });
}
