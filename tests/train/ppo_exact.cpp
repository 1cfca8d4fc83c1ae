// Identities and invariances of an iteration that hold exactly, or to rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ppo_world.h"

namespace tercet::ppo_test {
namespace {

// Prompts of different lengths over a vocabulary of 12.
PpoData ragged_prompts() {
  PpoData data;
  data.prompts = prompts_of({{2}, {2, 5}, {2, 4, 6, 8}, {2, 11, 3}, {2, 7, 7, 7, 9}, {2, 9}, {2, 10, 4}, {2, 3, 5}});
  return data;
}

double token_reward(const ScoredResponse& r) {
  double sum = 0;
  for (const int32_t id : r.response) sum += id % 3 == 0 ? 0.5 : -0.1;
  return sum;
}

WorldOptions ragged_options(DType dtype = DType::f64) {
  WorldOptions options;
  options.settings = small_settings();
  options.settings.minibatches = 2;
  options.dtype = dtype;
  options.data = ragged_prompts();
  options.reward = token_reward;
  return options;
}

// Blocks of different lengths.
std::vector<Sequence> text_blocks() {
  std::vector<Sequence> blocks(3);
  blocks[0].ids = {2, 4, 5, 6, 4, 5, 6, 2};
  blocks[1].ids = {2, 9, 2};
  blocks[2].ids = {2, 8, 8, 7, 2};
  return blocks;
}

// The experience of the first iteration.
Experience first_experience(const WorldOptions& options) {
  World world(options);
  Experience seen;
  world.trainer().set_experience_transform([&](Experience& x) { seen = x; });
  world.trainer().iteration(1);
  return seen;
}

double metric(const Json& metrics, const char* name) { return metrics.at(name).as_double(); }

}  // namespace

TEST_CASE("The KL divergence starts at exactly 0 and the first minibatch has ratio 1") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    World world(ragged_options(dtype));
    const Json metrics = world.trainer().iteration(1);
    CHECK(metric(metrics, "objective/kl_seq") == 0);
    CHECK(metric(metrics, "objective/kl_k3") == 0);
    CHECK(metric(metrics, "policy/ratio_first_minibatch_maxdev") <= 1e-5);
    CHECK(metric(metrics, "rollout/probs_diff_max") <= 1e-5);  // two orders of sums of 16 fp32 products
    CHECK(metric(metrics, "policy/approxkl") > 0);
  }
}

TEST_CASE("The critic starts as the reward model, its scale included, to the last bit") {
  WorldOptions options = ragged_options(DType::f32);
  options.reward_is_critic_start = true;
  options.affine = {0.3, 1.7};
  options.settings.normalize_reward = true;
  World world(options);
  CHECK_NOTHROW(world.trainer().iteration(1));
}

TEST_CASE("A critic that does not start as the reward model ends the run with a message") {
  WorldOptions options = ragged_options(DType::f32);
  options.reward_is_critic_start = true;
  World world(options);
  const Tensor weight = world.critic().units().weight("score.weight");
  std::vector<double> values = to_host(world.stream(), weight);
  values[0] += 0.01;
  to_device(world.stream(), values, weight);
  CHECK_THROWS_WITH_AS(world.trainer().iteration(1), doctest::Contains("critic starts as the reward model"), Error);
}

TEST_CASE("An actor that is not its reference at the start ends the run with a message") {
  World world(ragged_options(DType::f32));
  const Tensor bias = world.actor().units().weight("model.decoder.final_layer_norm.bias");
  std::vector<double> values = to_host(world.stream(), bias);
  values[0] += 0.01;
  to_device(world.stream(), values, bias);
  CHECK_THROWS_WITH_AS(world.trainer().iteration(1), doctest::Contains("does not start at 0"), Error);
}

TEST_CASE("With a learning rate of 0 the ratio stays 1 whatever the micro-batches") {
  for (const int64_t tokens : {16, 40, 512}) {
    WorldOptions options = ragged_options(DType::f32);
    options.settings.actor_lr = options.settings.critic_lr = 0;
    options.capacity_tokens = tokens;
    options.head_chunk_rows = 5;
    World world(options);
    const Json metrics = world.run(1, 2);
    // Scoring and training cut the same tokens differently: rounding of fp32 log-probabilities.
    CHECK(metric(metrics, "policy/ratio_maxdev") < 1e-5);
    CHECK(metric(metrics, "policy/clipfrac") == 0);
    CHECK(metric(metrics, "objective/kl_seq") == 0);
  }
}

TEST_CASE("An iteration does not depend on how it is split into micro-batches") {
  const auto weights_after = [](int64_t tokens, int64_t chunk_rows) {
    WorldOptions options = ragged_options();
    options.capacity_tokens = tokens;
    options.head_chunk_rows = chunk_rows;
    options.settings.entropy_coef = 0.01;
    options.settings.ptx_coef = 0.3;
    options.data.ptx_blocks = text_blocks();
    World world(options);
    world.trainer().iteration(1);
    std::vector<double> all = all_weights(world.stream(), world.actor());
    const std::vector<double> critic = all_weights(world.stream(), world.critic());
    all.insert(all.end(), critic.begin(), critic.end());
    return all;
  };
  const std::vector<double> whole = weights_after(512, 64);
  // 8 Adam steps of 1e-3 on fp64 gradients that differ by rounding (1e-16): Adam divides by |g| + 1e-5.
  CHECK(largest_difference(whole, weights_after(14, 64)) < 1e-12);
  CHECK(largest_difference(whole, weights_after(33, 3)) < 1e-12);
}

TEST_CASE("A response and its advantages do not depend on the other prompts or their order") {
  WorldOptions options = ragged_options();
  options.settings.whiten_advantages = false;  // the one step that mixes responses
  const Experience forward = first_experience(options);
  std::reverse(options.data.prompts.begin(), options.data.prompts.end());
  const Experience backward = first_experience(options);
  for (size_t a = 0; a < forward.rollouts.size(); ++a)
    for (size_t b = 0; b < backward.rollouts.size(); ++b) {
      if (forward.rollouts[a].sample != backward.rollouts[b].sample) continue;
      CHECK(forward.rollouts[a].ids == backward.rollouts[b].ids);
      const auto first = forward.advantages.begin() + forward.offsets[a];
      const auto last = forward.advantages.begin() + forward.offsets[a + 1];
      const auto other = backward.advantages.begin() + backward.offsets[b];
      CHECK(std::equal(first, last, other, [](double x, double y) { return std::abs(x - y) < 1e-12; }));
    }
}

TEST_CASE("A prompt meets other noise in each epoch and the same noise in each run") {
  WorldOptions options = ragged_options();
  options.settings.actor_lr = 0;
  std::vector<std::vector<Rollout>> seen;
  World world(options);
  world.trainer().set_experience_transform([&](Experience& x) { seen.push_back(x.rollouts); });
  world.run(1, 2);
  const auto ids = [](std::vector<Rollout> rollouts) {
    std::sort(rollouts.begin(), rollouts.end(), [](auto& a, auto& b) { return a.sample < b.sample; });
    std::vector<std::vector<int32_t>> all;
    for (const Rollout& rollout : rollouts) all.push_back(rollout.ids);
    return all;
  };
  CHECK(ids(seen[0]) != ids(seen[1]));
  CHECK(ids(seen[0]) == ids(first_experience(options).rollouts));
}

TEST_CASE("Prompts are drawn without replacement, across the end of an epoch too") {
  WorldOptions options = ragged_options();
  options.settings.rollouts = 3;
  std::map<uint64_t, int> times;
  World world(options);
  world.trainer().set_experience_transform([&](Experience& x) {
    for (const Rollout& rollout : x.rollouts) ++times[rollout.sample];
  });
  world.run(1, 8);  // 24 responses to 8 prompts
  CHECK(times.size() == 8);
  for (const auto& [sample, count] : times) CHECK(count == 3);
}

TEST_CASE("Rewards, advantages and whitening of an iteration are those of the formulas") {
  WorldOptions options = ragged_options();
  PpoSettings& s = options.settings;
  s.kl_coef = 0.1;
  s.gamma = 0.9;
  s.gae_lambda = 0.8;
  s.missing_eos_penalty = 0.7;
  s.reward_clip = 0.6;
  World world(options);
  world.trainer().iteration(1);  // so that actor and reference differ
  Experience x;
  world.trainer().set_experience_transform([&](Experience& seen) { x = seen; });
  world.trainer().iteration(2);
  std::vector<double> advantages(x.advantages.size());
  bool ended = false, cut = false, clipped = false;
  for (size_t b = 0; b < x.rollouts.size(); ++b) {
    const Rollout& rollout = x.rollouts[b];
    double score = token_reward(rollout.scored());
    CHECK(rollout.score == score);
    clipped = clipped || std::abs(score) > 0.6;
    score = std::clamp(score, -0.6, 0.6) - (rollout.terminated ? 0 : 0.7);
    ended = ended || rollout.terminated;
    cut = cut || !rollout.terminated;
    double next_value = 0, advantage = 0;
    for (auto t = static_cast<size_t>(x.offsets[b + 1]); t-- > static_cast<size_t>(x.offsets[b]);) {
      const bool last = t + 1 == static_cast<size_t>(x.offsets[b + 1]);
      const double reward = -0.1 * (x.log_probs[t] - x.reference_log_probs[t]) + (last ? score : 0);
      CHECK(x.rewards[t] == doctest::Approx(reward).epsilon(1e-12));
      advantage = reward + 0.9 * next_value - x.values[t] + 0.9 * 0.8 * advantage;
      advantages[t] = advantage;
      CHECK(x.returns[t] == doctest::Approx(advantage + x.values[t]).epsilon(1e-12));
      next_value = x.values[t];
    }
  }
  CHECK((ended && cut && clipped));
  double mean = 0, variance = 0;
  for (const double a : advantages) mean += a / static_cast<double>(advantages.size());
  for (const double a : advantages) variance += (a - mean) * (a - mean) / static_cast<double>(advantages.size());
  for (size_t t = 0; t < advantages.size(); ++t)
    CHECK(x.advantages[t] == doctest::Approx((advantages[t] - mean) / std::sqrt(variance + 1e-8)).epsilon(1e-10));
}

TEST_CASE("The value of a token is the critic's score of the position before it") {
  WorldOptions options = ragged_options();
  options.affine = {0.5, 2};
  World world(options);
  Experience x;
  world.trainer().set_experience_transform([&](Experience& seen) { x = seen; });
  options.settings.actor_lr = 0;
  // The critic's scores before the update, one sequence and one position at a time.
  std::vector<Rollout> rollouts = first_experience(options).rollouts;
  std::vector<double> expected;
  for (const Rollout& rollout : rollouts) {
    RaggedBatch batch;
    batch.append(rollout.ids, 0);
    for (int64_t t = rollout.prompt_length; t < rollout.length(); ++t)
      expected.push_back((world.critic().scores(batch, std::vector<int32_t>{static_cast<int32_t>(t - 1)})[0] - 0.5) /
                         2);
  }
  world.trainer().iteration(1);
  CHECK(largest_difference(expected, x.values) < 1e-12);
}

TEST_CASE("A first response token that is id 2 is a whole response; one without id 2 is cut and penalised") {
  // An actor that always answers id 2 at once: its embedding row agrees with the norm's bias.
  const auto favour = [](int32_t token) {
    return [token](Stream& stream, ModelInstance& actor) {
      const Tensor weight = actor.units().weight("model.decoder.final_layer_norm.weight");
      const Tensor bias = actor.units().weight("model.decoder.final_layer_norm.bias");
      const Tensor embedding = actor.units().weight("model.decoder.embed_tokens.weight");
      to_device(stream, std::vector<double>(static_cast<size_t>(weight.elements()), 0), weight);
      to_device(stream, std::vector<double>(static_cast<size_t>(bias.elements()), 1), bias);
      to_device(stream, std::vector<double>(static_cast<size_t>(embedding.columns()), 3),
                embedding.row_range(token, 1));
    };
  };
  WorldOptions options = ragged_options();
  options.settings.missing_eos_penalty = 0.25;
  options.prepare_actor = favour(2);
  {
    World world(options);
    const Json metrics = world.trainer().iteration(1);
    CHECK(metric(metrics, "response/empty_rate") == 1);
    CHECK(metric(metrics, "response/eos_rate") == 1);
    CHECK(metric(metrics, "response/len_mean") == 1);
    CHECK(metric(metrics, "objective/rlhf_reward") == doctest::Approx(metric(metrics, "objective/score")));
  }
  options.prepare_actor = favour(7);
  World world(options);
  const Json metrics = world.trainer().iteration(1);
  CHECK(metric(metrics, "response/eos_rate") == 0);
  CHECK(metric(metrics, "response/truncated_rate") == 1);
  CHECK(metric(metrics, "response/len_mean") == 8);
  CHECK(metrics.find("response/len_terminated_mean") == nullptr);
  CHECK(metric(metrics, "response/repetition") > 0.8);
  CHECK(metric(metrics, "objective/rlhf_reward") == doctest::Approx(metric(metrics, "objective/score") - 0.25));
}

TEST_CASE("A reward that is not finite is an error that names the response") {
  WorldOptions options = ragged_options();
  options.reward = [](const ScoredResponse& r) {
    return r.prompt.size() == 5 ? std::numeric_limits<double>::quiet_NaN() : 0.0;
  };
  World world(options);
  CHECK_THROWS_WITH_AS(world.trainer().iteration(1), doctest::Contains("to the prompt of record 4"), Error);
}

TEST_CASE("A gradient that is not finite skips actor and critic together and is counted") {
  WorldOptions options = ragged_options();
  options.settings.ppo_epochs = 2;
  options.settings.max_skips = 5;
  World world(options);
  int64_t poisoned = 0;
  world.trainer().set_experience_transform([&](Experience& x) {
    if (poisoned++ == 0) x.advantages[0] = std::numeric_limits<double>::quiet_NaN();
  });
  const std::vector<double> actor = all_weights(world.stream(), world.actor());
  const std::vector<double> critic = all_weights(world.stream(), world.critic());
  Json metrics = world.trainer().iteration(1);
  // One minibatch of each pass holds the poisoned token.
  CHECK(metrics.at("skipped_steps").as_int() == 2);
  CHECK(metrics.at("policy/updates").as_int() == 2);
  CHECK(std::isfinite(metric(metrics, "loss/policy")));
  CHECK(largest_difference(actor, all_weights(world.stream(), world.actor())) > 0);
  for (const double w : all_weights(world.stream(), world.actor())) REQUIRE(std::isfinite(w));
  for (const double w : all_weights(world.stream(), world.critic())) REQUIRE(std::isfinite(w));
  CHECK(largest_difference(critic, all_weights(world.stream(), world.critic())) > 0);
  metrics = world.trainer().iteration(2);
  CHECK(metrics.at("skipped_steps").as_int() == 2);
}

TEST_CASE("A critic whose gradient is not finite holds the actor back as well, and too many skips end the run") {
  WorldOptions options = ragged_options();
  options.settings.minibatches = 1;
  options.settings.max_skips = 3;
  World world(options);
  world.trainer().set_experience_transform(
      [](Experience& x) { x.returns[0] = std::numeric_limits<double>::infinity(); });
  const std::vector<double> actor = all_weights(world.stream(), world.actor());
  // 4 epochs of one minibatch: the fourth skip in a row passes --max-skips 3.
  CHECK_THROWS_WITH_AS(world.trainer().iteration(1), doctest::Contains("--max-skips"), Error);
  CHECK(largest_difference(actor, all_weights(world.stream(), world.actor())) == 0);
}

TEST_CASE("Early stopping ends an iteration's updates") {
  WorldOptions options = ragged_options();
  options.settings.actor_lr = 0.05;
  options.settings.early_stop_kl = 1e-6;
  World world(options);
  const Json metrics = world.trainer().iteration(1);
  CHECK(metrics.at("policy/stopped_early").as_int() == 1);
  CHECK(metrics.at("policy/updates").as_int() == 1);
}

TEST_CASE("The pre-training mix lowers the cross-entropy of its text and shares one clip with the policy loss") {
  WorldOptions options = ragged_options();
  options.settings.ptx_coef = 5;
  options.settings.actor_lr = 0.01;
  options.iterations = 6;
  Sequence block;
  block.ids = {2, 4, 5, 6, 4, 5, 6, 2};
  block.prompt_length = 1;
  options.data.ptx_blocks = {block};
  World world(options);
  const double before = metric(world.trainer().iteration(1), "loss/ptx");
  const Json metrics = world.run(2);
  CHECK(metric(metrics, "loss/ptx") < 0.5 * before);
}

TEST_CASE("Sampling, scoring and training use one temperature") {
  for (const double temperature : {0.6, 1.8}) {
    WorldOptions options = ragged_options();
    options.settings.temperature = temperature;
    World world(options);
    const Json metrics = world.trainer().iteration(1);
    CHECK(metric(metrics, "objective/kl_seq") == 0);
    // fp64 rounding; logits of another temperature differ in the first digit.
    CHECK(metric(metrics, "rollout/probs_diff_max") < 1e-12);
    CHECK(metric(metrics, "policy/ratio_first_minibatch_maxdev") < 1e-12);
  }
}

TEST_CASE("The entropy bonus raises the entropy") {
  WorldOptions options = ragged_options();
  options.settings.entropy_coef = 1;
  options.settings.kl_coef = 0;
  options.settings.actor_lr = 0.01;
  options.settings.whiten_advantages = false;
  options.settings.missing_eos_penalty = 0;
  options.reward = [](const ScoredResponse&) { return 0.0; };
  World world(options);
  const double before = metric(world.trainer().iteration(1), "policy/entropy");
  CHECK(metric(world.run(2, 5), "policy/entropy") > before + 0.1);
}

TEST_CASE("The critic's scale passes through the chain rule") {
  // Twice the head weight and twice the sd give the same values: equal gradients of the body, half that of the head.
  const auto gradients = [](double scale) {
    WorldOptions options = ragged_options();
    options.settings.minibatches = options.settings.ppo_epochs = 1;
    options.settings.actor_lr = options.settings.critic_lr = options.settings.max_grad_norm = 0;
    options.affine = {0, scale};  // without clipping Adam's first moments are a tenth of the gradients
    World world(options);
    const Tensor head = world.critic().units().weight("score.weight");
    std::vector<double> weights = to_host(world.stream(), head);
    for (double& w : weights) w *= scale;
    to_device(world.stream(), weights, head);
    world.trainer().iteration(1);
    UnitSet& units = world.critic().units();
    std::vector<double> of_head = to_host(world.stream(), units.first_moment("score.weight"));
    for (double& g : of_head) g *= scale;
    return std::pair(of_head, to_host(world.stream(), units.first_moment("model.decoder.final_layer_norm.bias")));
  };
  const auto [head, body] = gradients(1);
  const auto [scaled_head, scaled_body] = gradients(4);
  CHECK(largest_difference(head, std::vector<double>(head.size(), 0)) > 1e-3);
  CHECK(largest_difference(head, scaled_head) < 1e-13);
  CHECK(largest_difference(body, scaled_body) < 1e-13);
}

TEST_CASE("The critic learns the value of a constant reward") {
  WorldOptions options = ragged_options();
  options.settings.kl_coef = 0;
  options.settings.actor_lr = 0;
  options.settings.critic_lr = 0.02;
  options.settings.missing_eos_penalty = 0;
  options.affine = {0.2, 2};
  options.iterations = 25;
  options.reward = [](const ScoredResponse&) { return 1.5; };
  World world(options);
  const double before = metric(world.trainer().iteration(1), "loss/value");
  const Json metrics = world.run(2);
  CHECK(metric(metrics, "loss/value") < 0.05 * before);
  CHECK(metric(metrics, "value/mean") == doctest::Approx(1.5).epsilon(0.1));
}

TEST_CASE("The moving average follows the actor once per step") {
  WorldOptions options = ragged_options();
  options.settings.minibatches = options.settings.ppo_epochs = 1;
  options.settings.ema_decay = 0.75;
  World world(options);
  const auto average = [&] {
    return to_host(world.stream(), world.trainer().ema()->weight("model.decoder.final_layer_norm.bias"));
  };
  const auto present = [&] {
    return to_host(world.stream(), world.actor().units().weight("model.decoder.final_layer_norm.bias"));
  };
  std::vector<double> expected = present();
  CHECK(average() == expected);
  for (int64_t step = 1; step <= 3; ++step) {
    world.trainer().iteration(step);
    const std::vector<double> now = present();
    for (size_t i = 0; i < now.size(); ++i) expected[i] = 0.75 * expected[i] + 0.25 * now[i];
    CHECK(largest_difference(average(), expected) < 1e-15);
  }
}

TEST_CASE("An adaptive coefficient follows the KL divergence of the iteration") {
  WorldOptions options = ragged_options();
  options.settings.adaptive_kl_target = 6;
  options.settings.kl_horizon = 100;
  World world(options);
  world.trainer().iteration(1);  // KL 0: the error is clipped at -0.2
  CHECK(world.trainer().kl_coef() == doctest::Approx(0.05 * (1 - 0.2 * 8 / 100)).epsilon(1e-12));
  const Json metrics = world.trainer().iteration(2);
  CHECK(metric(metrics, "objective/kl_coef") == doctest::Approx(0.05 * (1 - 0.2 * 8 / 100)).epsilon(1e-12));
  CHECK(metric(metrics, "objective/kl_seq") != 0);
}

TEST_CASE("Learning rates follow the planned optimiser steps") {
  WorldOptions options = ragged_options();
  options.settings.schedule = "linear";
  options.settings.actor_lr = 1;
  options.settings.critic_lr = 0;
  options.settings.ppo_epochs = 2;
  options.iterations = 3;  // 12 steps
  options.settings.early_stop_kl = 1e-12;
  World world(options);
  // The iteration stops at its second minibatch, whose rate would be lr (1 - 1/12); the last one had lr.
  CHECK(metric(world.trainer().iteration(1), "actor/lr") == doctest::Approx(1));
  CHECK(metric(world.trainer().iteration(2), "actor/lr") == doctest::Approx(1 - 4.0 / 12));
}

TEST_CASE("All planned memory is taken") {
  WorldOptions options = ragged_options();
  options.settings.ema_decay = 0.9;
  World world(options);
  CHECK_NOTHROW(world.arena().require_all_taken());
  size_t planned = 0, taken = 0;
  for (int c = 0; c < kMemoryClasses; ++c) {
    planned += world.arena().plan().class_bytes(static_cast<MemoryClass>(c));
    taken += world.arena().taken_bytes(static_cast<MemoryClass>(c));
  }
  CHECK(planned == taken);
}

TEST_CASE("Settings without meaning are refused") {
  const auto refused = [](auto change, const char* message) {
    WorldOptions options = ragged_options();
    change(options);
    CHECK_THROWS_WITH_AS(World{options}, doctest::Contains(message), Error);
  };
  refused([](WorldOptions& o) { o.settings.minibatches = 9; }, "--minibatches");
  refused([](WorldOptions& o) { o.data.prompts.clear(); }, "--data");
  refused([](WorldOptions& o) { o.settings.temperature = 0; }, "--temperature");
  refused([](WorldOptions& o) { o.settings.ptx_coef = 1; }, "--ptx-coef");
  refused([](WorldOptions& o) { o.data.prompts[1].sample = 0; }, "sample number");
}

TEST_CASE("Evaluation repeats itself, counts ties half at the start and changes nothing in training") {
  WorldOptions options = ragged_options();
  options.data.eval_prompts = prompts_of({{2, 3}, {2, 5, 6}, {2, 8, 8, 8}, {2}});
  World plain(options);
  World evaluated(options);
  const Json start = evaluated.trainer().evaluate();
  CHECK(metric(start, "eval/win_rate") == 0.5);
  CHECK(metric(start, "eval/kl_seq") == 0);
  CHECK(evaluated.trainer().evaluate() == start);
  for (int64_t step = 1; step <= 3; ++step) {
    const Json metrics = plain.trainer().iteration(step);
    CHECK(evaluated.trainer().iteration(step) == metrics);
    evaluated.trainer().evaluate();
    evaluated.trainer().samples(3);
  }
  CHECK(all_weights(plain.stream(), plain.actor()) == all_weights(evaluated.stream(), evaluated.actor()));
  const Json end = evaluated.trainer().evaluate();
  CHECK(metric(end, "eval/win_rate_low") < metric(end, "eval/win_rate_high"));
  CHECK(metric(end, "eval/kl_seq") != 0);
}

}  // namespace tercet::ppo_test
