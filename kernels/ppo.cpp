#include "kernels/ppo.h"

#include <cmath>

#include "kernels/cpu.h"

// There are few response tokens beside logits and activations: one thread, all arithmetic in fp64, one rounding at the
// end.

namespace tercet {
namespace {

constexpr double kMaxLogRatio = 20;

// A vector [R] of the op's dtype.
void require_tokens(const Tensor& tensor, const Tensor& first, const char* name) {
  require_vector(tensor, first.dtype, first.rows(), name);
}

double clip(double x, double low, double high) { return x < low ? low : (x > high ? high : x); }

template <class T>
void shape_rewards(const RewardShapingArgs& args) {
  const T* log_prob = args.log_prob.row<T>();
  const T* reference = args.reference_log_prob.row<T>();
  const T* scores = args.scores.row<T>();
  const uint8_t* terminated = args.terminated.row<uint8_t>();
  const int32_t* offsets = args.offsets.row<int32_t>();
  T* rewards = args.rewards.row<T>();
  for (int64_t b = 0; b < args.scores.rows(); ++b) {
    const int64_t last = offsets[b + 1] - 1;
    double score = (double{scores[b]} - args.score_mean) / args.score_sd;
    if (args.reward_clip > 0) score = clip(score, -args.reward_clip, args.reward_clip);
    if (terminated[b] == 0) score -= args.missing_eos_penalty;
    for (int64_t t = offsets[b]; t <= last; ++t) {
      const double penalty = -args.kl_coef * (double{log_prob[t]} - double{reference[t]});
      rewards[t] = static_cast<T>(t == last ? penalty + score : penalty);
    }
  }
}

void reward_shaping_cpu(Stream&, const RewardShapingArgs& args) {
  require_rank(args.log_prob, 1, "log_prob");
  require_rank(args.scores, 1, "scores");
  const int64_t responses = args.scores.rows();
  require_tokens(args.log_prob, args.log_prob, "log_prob");
  require_tokens(args.reference_log_prob, args.log_prob, "reference_log_prob");
  require_tokens(args.rewards, args.log_prob, "rewards");
  require_vector(args.scores, args.log_prob.dtype, responses, "scores");
  require_vector(args.terminated, DType::u8, responses, "terminated");
  require_shape(args.offsets, DType::i32, {responses + 1}, "offsets");
  const int32_t* offsets = require_offsets(args.offsets, args.log_prob.rows());
  for (int64_t b = 0; b < responses; ++b) TERCET_REQUIRE(offsets[b] < offsets[b + 1], "response {} has no token", b);
  TERCET_REQUIRE(args.score_sd > 0, "a standard deviation of scores of {}", args.score_sd);
  TERCET_REQUIRE(args.reward_clip >= 0, "a reward clip of {}", args.reward_clip);
  dispatch_floating(args.log_prob.dtype, [&]<class T>() { shape_rewards<T>(args); });
}

template <class T>
void estimate_advantages(const GaeArgs& args) {
  const T* rewards = args.rewards.row<T>();
  const T* values = args.values.row<T>();
  const int32_t* offsets = args.offsets.row<int32_t>();
  T* advantages = args.advantages.row<T>();
  T* returns = args.returns.row<T>();
  for (int64_t b = 0; b + 1 < args.offsets.rows(); ++b) {
    double next_value = 0;
    double advantage = 0;
    for (int64_t t = offsets[b + 1] - 1; t >= offsets[b]; --t) {
      const double value = double{values[t]};
      const double delta = double{rewards[t]} + args.gamma * next_value - value;
      advantage = delta + args.gamma * args.lambda * advantage;
      advantages[t] = static_cast<T>(advantage);
      returns[t] = static_cast<T>(advantage + value);
      next_value = value;
    }
  }
}

void gae_cpu(Stream&, const GaeArgs& args) {
  require_rank(args.rewards, 1, "rewards");
  require_tokens(args.rewards, args.rewards, "rewards");
  require_tokens(args.values, args.rewards, "values");
  require_tokens(args.advantages, args.rewards, "advantages");
  require_tokens(args.returns, args.rewards, "returns");
  require_offsets(args.offsets, args.rewards.rows());
  dispatch_floating(args.rewards.dtype, [&]<class T>() { estimate_advantages<T>(args); });
}

void centered_sums_cpu(Stream&, const CenteredSumsArgs& args) {
  require_rank(args.x, 1, "x");
  require_tokens(args.x, args.x, "x");
  require_vector(args.sums, DType::f64, 2, "sums");
  dispatch_floating(args.x.dtype, [&]<class T>() {
    const T* x = args.x.row<T>();
    double sum = 0;
    double squares = 0;
    for (int64_t t = 0; t < args.x.rows(); ++t) {
      const double difference = double{x[t]} - args.center;
      sum += difference;
      squares += difference * difference;
    }
    double* sums = args.sums.row<double>();
    sums[0] = sum;
    sums[1] = squares;
  });
}

void whiten_cpu(Stream&, const WhitenArgs& args) {
  require_rank(args.x, 1, "x");
  require_tokens(args.x, args.x, "x");
  TERCET_REQUIRE(args.variance + args.epsilon > 0, "a variance of {}", args.variance);
  dispatch_floating(args.x.dtype, [&]<class T>() {
    T* x = args.x.row<T>();
    const double scale = 1 / std::sqrt(args.variance + args.epsilon);
    for (int64_t t = 0; t < args.x.rows(); ++t) x[t] = static_cast<T>((double{x[t]} - args.mean) * scale);
  });
}

// max(old, candidate) that a NaN on either side makes NaN.
double max_or_nan(double old, double candidate) { return std::isnan(candidate) || candidate > old ? candidate : old; }

template <class T>
void policy_loss(const PpoPolicyLossArgs& args) {
  const T* log_prob = args.log_prob.row<T>();
  const T* old_log_prob = args.old_log_prob.row<T>();
  const T* advantages = args.advantages.row<T>();
  const T* entropy = elements_of<T>(args.entropy);
  T* d_log_prob = args.d_log_prob.row<T>();
  T* d_entropy = elements_of<T>(args.d_entropy);
  double sums[8] = {};
  double deviation = args.max_ratio_deviation.row<double>()[0];
  for (int64_t t = 0; t < args.log_prob.rows(); ++t) {
    const double difference = double{log_prob[t]} - double{old_log_prob[t]};
    const double log_ratio = clip(difference, -kMaxLogRatio, kMaxLogRatio);
    const double ratio = std::exp(log_ratio);
    const double advantage = double{advantages[t]};
    const double plain = -advantage * ratio;
    const double clipped = -advantage * clip(ratio, 1 - args.clip_range, 1 + args.clip_range);
    const bool clip_active = clipped > plain;
    const bool constant = clip_active || std::abs(difference) > kMaxLogRatio;
    d_log_prob[t] = static_cast<T>(constant ? 0 : args.scale * plain);
    if (d_entropy != nullptr) d_entropy[t] = static_cast<T>(-args.scale * args.entropy_coef);
    sums[0] += clip_active ? clipped : plain;
    if (clip_active) sums[ratio < 1 ? 1 : 2] += 1;
    sums[3] += 0.5 * difference * difference;
    sums[4] += ratio;
    sums[5] += ratio * ratio;
    sums[6] += std::expm1(difference) - difference;
    if (entropy != nullptr) sums[7] += double{entropy[t]};
    deviation = max_or_nan(deviation, std::abs(ratio - 1));
  }
  for (int i = 0; i < 8; ++i) args.statistics.row<double>()[i] += sums[i];
  args.max_ratio_deviation.row<double>()[0] = deviation;
}

void ppo_policy_loss_cpu(Stream&, const PpoPolicyLossArgs& args) {
  require_rank(args.log_prob, 1, "log_prob");
  require_tokens(args.log_prob, args.log_prob, "log_prob");
  require_tokens(args.old_log_prob, args.log_prob, "old_log_prob");
  require_tokens(args.advantages, args.log_prob, "advantages");
  require_tokens(args.d_log_prob, args.log_prob, "d_log_prob");
  TERCET_REQUIRE(args.entropy.defined() == args.d_entropy.defined(), "entropy and d_entropy go together");
  TERCET_REQUIRE(args.entropy.defined() || args.entropy_coef == 0, "an entropy bonus needs the entropy");
  if (args.entropy.defined()) {
    require_tokens(args.entropy, args.log_prob, "entropy");
    require_tokens(args.d_entropy, args.log_prob, "d_entropy");
  }
  require_vector(args.statistics, DType::f64, 8, "statistics");
  require_vector(args.max_ratio_deviation, DType::f64, 1, "max_ratio_deviation");
  TERCET_REQUIRE(args.clip_range >= 0, "a clip range of {}", args.clip_range);
  dispatch_floating(args.log_prob.dtype, [&]<class T>() { policy_loss<T>(args); });
}

template <class T>
void value_loss(const PpoValueLossArgs& args) {
  const T* values = args.values.row<T>();
  const T* old_values = args.old_values.row<T>();
  const T* returns = args.returns.row<T>();
  T* d_values = args.d_values.row<T>();
  double sums[4] = {};
  for (int64_t t = 0; t < args.values.rows(); ++t) {
    const double value = double{values[t]};
    const double old_value = double{old_values[t]};
    const double error = value - double{returns[t]};
    const double clipped_error =
        clip(value, old_value - args.clip_range, old_value + args.clip_range) - double{returns[t]};
    const bool clip_active = clipped_error * clipped_error > error * error;
    d_values[t] = static_cast<T>(clip_active ? 0 : args.scale * error);
    sums[0] += 0.5 * (clip_active ? clipped_error * clipped_error : error * error);
    if (clip_active) sums[1] += 1;
    sums[2] += value;
    sums[3] += error * error;
  }
  for (int i = 0; i < 4; ++i) args.statistics.row<double>()[i] += sums[i];
}

void ppo_value_loss_cpu(Stream&, const PpoValueLossArgs& args) {
  require_rank(args.values, 1, "values");
  require_tokens(args.values, args.values, "values");
  require_tokens(args.old_values, args.values, "old_values");
  require_tokens(args.returns, args.values, "returns");
  require_tokens(args.d_values, args.values, "d_values");
  require_vector(args.statistics, DType::f64, 4, "statistics");
  TERCET_REQUIRE(args.clip_range >= 0, "a clip range of {}", args.clip_range);
  dispatch_floating(args.values.dtype, [&]<class T>() { value_loss<T>(args); });
}

}  // namespace

const Op<RewardShapingArgs> reward_shaping{"reward_shaping", reward_shaping_cpu};
const Op<GaeArgs> gae{"gae", gae_cpu};
const Op<CenteredSumsArgs> centered_sums{"centered_sums", centered_sums_cpu};
const Op<WhitenArgs> whiten{"whiten", whiten_cpu};
const Op<PpoPolicyLossArgs> ppo_policy_loss{"ppo_policy_loss", ppo_policy_loss_cpu};
const Op<PpoValueLossArgs> ppo_value_loss{"ppo_value_loss", ppo_value_loss_cpu};

}  // namespace tercet
