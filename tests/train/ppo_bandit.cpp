// The problem whose answer is known: one token, a uniform reference, KL-regularised reward. The optimum is
// pi(a) proportional to pi_ref(a) exp(r(a) / beta).
#include <cmath>

#include "ppo_world.h"

namespace tercet::ppo_test {
namespace {

constexpr double kBeta = 0.5;
constexpr int kTokens = 4;

// Hidden states 0, so that logits are 0 and the policy is uniform; the last norm's parameters learn.
void make_uniform(Stream& stream, ModelInstance& actor) {
  for (const char* name : {"model.decoder.final_layer_norm.weight", "model.decoder.final_layer_norm.bias"}) {
    const Tensor tensor = actor.units().weight(name);
    to_device(stream, std::vector<double>(static_cast<size_t>(tensor.elements()), 0), tensor);
  }
}

WorldOptions bandit_options(uint64_t seed) {
  WorldOptions options;
  PpoSettings& s = options.settings = small_settings();
  s.seed = seed;
  s.rollouts = 256;
  s.max_prompt_tokens = 1;
  s.max_new_tokens = 1;
  s.kl_coef = kBeta;
  s.missing_eos_penalty = 0;
  s.whiten_advantages = false;  // the advantage's variance goes to 0 at the optimum
  s.actor_lr = s.critic_lr = 0.03;
  s.schedule = "linear";
  options.iterations = 60;
  options.config = tiny_config(kTokens, 8);
  options.init_seed = seed;
  options.prepare_actor = make_uniform;
  options.reward = [](const ScoredResponse& r) { return r.response[0] == 0 ? 1.0 : 0.0; };
  options.data.prompts = prompts_of(std::vector<std::vector<int32_t>>(256, {2}));
  return options;
}

double kl_to_uniform(const std::vector<double>& p) {
  double sum = 0;
  for (const double x : p) sum += x * std::log(x * kTokens);
  return sum;
}

}  // namespace

TEST_CASE("PPO finds the optimum of the KL-regularised bandit") {
  const double optimum = std::exp(2.0) / (std::exp(2.0) + 3);
  CHECK(optimum == doctest::Approx(0.71123).epsilon(1e-5));
  for (const uint64_t seed : {1, 2, 3}) {
    World world(bandit_options(seed));
    for (const double p : world.next_token_probabilities(world.actor(), {2})) CHECK(p == doctest::Approx(0.25));
    world.run();
    const std::vector<double> p = world.next_token_probabilities(world.actor(), {2});
    MESSAGE("pi(0) " << p[0] << ", KL " << kl_to_uniform(p));
    // The acceptance of the algorithm: 0.02 is what 256 samples per iteration and a falling rate leave of the noise.
    CHECK(std::abs(p[0] - optimum) < 0.02);
    CHECK(std::abs(kl_to_uniform(p) - 0.46801) < 0.02);
  }
}

TEST_CASE("With the sign of the advantages flipped the bandit is not solved") {
  World world(bandit_options(1));
  world.trainer().set_experience_transform([](Experience& x) {
    for (double& a : x.advantages) a = -a;
  });
  world.run();
  CHECK(world.next_token_probabilities(world.actor(), {2})[0] < 0.3);
}

}  // namespace tercet::ppo_test
