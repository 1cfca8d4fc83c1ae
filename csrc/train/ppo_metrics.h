// Metrics of one PPO iteration, over all ranks. Names are those of the field; a metric that is undefined (a mean over
// nothing) is absent.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "shard/communicator.h"
#include "train/ppo_experience.h"

namespace tercet {

// Named means, sums, minima and maxima of what each rank adds, reduced together.
class MetricTable {
 public:
  // sum / weight, each added over ranks; absent when the weight is 0.
  void mean(std::string name, double sum, double weight);
  void minimum(std::string name, double value);
  void maximum(std::string name, double value);
  // A value that is the same on all ranks already; absent when it is not a number.
  void same(std::string name, double value);
  void same(std::string name, int64_t value);
  // The entries of another table, after those of this one.
  void append(const MetricTable& other);

  // The metrics in the order in which they were added. All ranks must have added the same names.
  Json reduce(Communicator& communicator) const;

 private:
  enum class Kind { mean, minimum, maximum, same_real, same_integer };
  struct Entry {
    std::string name;
    Kind kind;
    double value = 0, weight = 1;
    int64_t integer = 0;
  };
  std::vector<Entry> entries_;
};

// How scores become rewards.
struct RewardScale {
  double mean = 0, sd = 1;
  double kl_coef = 0;
};

// objective/score, score_std, score_min, score_max: raw scores, before KL and penalties
// objective/score_normalized: mean of (score - mean) / sd, not clipped
// objective/rlhf_reward: mean over responses of the sum of their rewards
// objective/kl_seq, kl_token: k1 = log_prob - reference_log_prob, summed per response and per token; kl_k3 per token:
// exp(-k1) - 1 + k1 (J. Schulman, "Approximating KL divergence", 2020)
// objective/non_score_reward: -beta kl_seq;  objective/entropy_sampled: mean over responses of sum -log_prob
// policy/entropy: mean exact entropy
void add_objective_metrics(MetricTable& table, const Experience& experience, const RewardScale& scale,
                           Communicator& communicator);

// response/len_mean, len_min, len_max: tokens, the final id 2 among them; len_terminated_mean of those that ended
// response/eos_rate, truncated_rate; empty_rate: nothing but the final id 2
// response/repetition: share of 3-grams that repeat an earlier one of their response; distinct_2: share of distinct
// 2-grams; both are means over responses long enough to have one
// prompt/len_mean, len_min, len_max
void add_response_metrics(MetricTable& table, std::span<const Rollout> rollouts);

// rollout/probs_diff_mean, max, pearson: |p_decode - p_train| of the sampled tokens, and the correlation of the two
void add_decode_metrics(MetricTable& table, const Experience& experience, Communicator& communicator);

// value/mean, value/explained_var of the values at collection; returns/mean, returns/var
void add_value_metrics(MetricTable& table, const Experience& experience, Communicator& communicator);

}  // namespace tercet
