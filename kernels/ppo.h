// The arithmetic of PPO on response tokens: reward shaping, GAE, whitening, policy and value losses.
// R response tokens of B responses; response b owns [offsets[b], offsets[b+1]).
// J. Schulman et al., "Proximal policy optimization algorithms", 2017; D. Ziegler et al., "Fine-tuning language models
// from human preferences", 2019.
#pragma once

#include "kernels/op.h"

namespace tercet {

// rewards[t] = -kl_coef (log_prob[t] - reference_log_prob[t]), plus at the last token of response b:
// clip((scores[b] - score_mean) / score_sd, -reward_clip, reward_clip) - (terminated[b] ? 0 : missing_eos_penalty)
struct RewardShapingArgs {
  Tensor log_prob;            // [R]
  Tensor reference_log_prob;  // [R]
  Tensor scores;              // [B]
  Tensor terminated;          // [B] uint8
  Tensor offsets;             // [B+1] int32; every response has at least one token
  Tensor rewards;             // [R] written
  double kl_coef = 0;
  double score_mean = 0;
  double score_sd = 1;
  double reward_clip = 0;  // 0: not clipped
  double missing_eos_penalty = 0;
};
extern const Op<RewardShapingArgs> reward_shaping;

// delta_t = r_t + gamma V_{t+1} - V_t with V = 0 after the last token;  advantage_t = delta_t + gamma lambda
// advantage_{t+1}; returns = advantages + values.   J. Schulman et al., "High-dimensional continuous control using
// GAE", 2015.
struct GaeArgs {
  Tensor rewards;     // [R]
  Tensor values;      // [R] value of the state before the token
  Tensor offsets;     // [B+1] int32
  Tensor advantages;  // [R] written
  Tensor returns;     // [R] written
  double gamma = 1;
  double lambda = 1;
};
extern const Op<GaeArgs> gae;

// sums[0] = sum_t (x_t - center), sums[1] = sum_t (x_t - center)^2, in fp64. Global mean and population variance take
// two calls (center 0, then the mean) with a sum over ranks between them.
struct CenteredSumsArgs {
  Tensor x;     // [R]
  Tensor sums;  // [2] fp64, written
  double center = 0;
};
extern const Op<CenteredSumsArgs> centered_sums;

// x_t = (x_t - mean) / sqrt(variance + epsilon), in place.
struct WhitenArgs {
  Tensor x;  // [R], in place
  double mean = 0;
  double variance = 1;
  double epsilon = 1e-8;
};
extern const Op<WhitenArgs> whiten;

// log_ratio = clamp(log_prob - old_log_prob, -20, 20), ratio = exp(log_ratio);
// loss_t = max(-A ratio, -A clamp(ratio, 1 - clip_range, 1 + clip_range)) - entropy_coef entropy_t
// d_log_prob, d_entropy: gradient of `scale` sum_t loss_t (0 where the clipped branch or the clamp is active).
// statistics (fp64, accumulated): [0] sum of the policy term, [1] tokens whose clipped branch is chosen at ratio < 1,
// [2] the same at ratio > 1, [3] sum 0.5 l^2 with l = log_prob - old_log_prob, [4] sum ratio, [5] sum ratio^2, [6] sum
// exp(l) - 1 - l (k3 of the old policy against the new one), [7] sum entropy (0 when not given).
struct PpoPolicyLossArgs {
  Tensor log_prob;             // [R]
  Tensor old_log_prob;         // [R]
  Tensor advantages;           // [R]
  Tensor entropy;              // [R], given exactly when d_entropy is
  Tensor d_log_prob;           // [R] written
  Tensor d_entropy;            // [R] written, or not given
  Tensor statistics;           // [8] fp64, accumulated
  Tensor max_ratio_deviation;  // [1] fp64: max(old contents, max_t |ratio - 1|)
  double clip_range = 0.2;
  double entropy_coef = 0;
  double scale = 1;  // 1 / tokens of the global minibatch
};
extern const Op<PpoPolicyLossArgs> ppo_policy_loss;

// clipped = clamp(value, old_value - clip_range, old_value + clip_range);
// loss_t = 0.5 max((value - return)^2, (clipped - return)^2);  d_values: gradient of `scale` sum_t loss_t.
// statistics (fp64, accumulated): [0] sum loss, [1] tokens where the clipped branch is chosen, [2] sum value,
// [3] sum (value - return)^2.
struct PpoValueLossArgs {
  Tensor values;      // [R]
  Tensor old_values;  // [R]
  Tensor returns;     // [R]
  Tensor d_values;    // [R] written
  Tensor statistics;  // [4] fp64, accumulated
  double clip_range = 0.2;
  double scale = 1;
};
extern const Op<PpoValueLossArgs> ppo_value_loss;

}  // namespace tercet
