#include "train/ppo_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/ppo_math.h"

namespace tercet {
namespace {

std::vector<double> scores_of(std::span<const Rollout> rollouts) {
  std::vector<double> scores;
  for (const Rollout& rollout : rollouts) scores.push_back(rollout.score);
  return scores;
}

double sum_of(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

// Probabilities of the sampled tokens by both paths.
struct Probabilities {
  std::vector<double> decode, training;
};

Probabilities probabilities(const Experience& experience) {
  Probabilities result;
  for (const Rollout& rollout : experience.rollouts)
    for (const double log_prob : rollout.decode_log_probs) result.decode.push_back(std::exp(log_prob));
  for (const double log_prob : experience.log_probs) result.training.push_back(std::exp(log_prob));
  return result;
}

double correlation(const Probabilities& p, Communicator& communicator) {
  const Moments x = global_moments(p.decode, communicator);
  const Moments y = global_moments(p.training, communicator);
  double covariance = 0;
  for (size_t i = 0; i < p.decode.size(); ++i) covariance += (p.decode[i] - x.mean) * (p.training[i] - y.mean);
  communicator.all_reduce_sum({&covariance, 1});
  const double scale = x.count * x.sd() * y.sd();
  return scale > 0 ? covariance / scale : std::numeric_limits<double>::quiet_NaN();
}

void add_repetition(MetricTable& table, std::span<const Rollout> rollouts) {
  double repeated = 0, with_3 = 0, distinct = 0, with_2 = 0;
  for (const Rollout& rollout : rollouts) {
    repeated += repetition(rollout.response(), 3);
    with_3 += rollout.response_length() >= 3 ? 1 : 0;
    if (rollout.response_length() < 2) continue;
    distinct += 1 - repetition(rollout.response(), 2);
    with_2 += 1;
  }
  table.mean("response/repetition", repeated, with_3);
  table.mean("response/distinct_2", distinct, with_2);
}

}  // namespace

void MetricTable::mean(std::string name, double sum, double weight) {
  entries_.push_back({std::move(name), Kind::mean, sum, weight});
}
void MetricTable::minimum(std::string name, double value) {
  entries_.push_back({std::move(name), Kind::minimum, value});
}
void MetricTable::maximum(std::string name, double value) {
  entries_.push_back({std::move(name), Kind::maximum, value});
}
void MetricTable::same(std::string name, double value) {
  entries_.push_back({std::move(name), Kind::same_real, value});
}
void MetricTable::same(std::string name, int64_t value) {
  entries_.push_back({std::move(name), Kind::same_integer, 0, 1, value});
}

void MetricTable::append(const MetricTable& other) {
  entries_.insert(entries_.end(), other.entries_.begin(), other.entries_.end());
}

Json MetricTable::reduce(Communicator& communicator) const {
  std::vector<double> sums, extremes;
  for (const Entry& entry : entries_) {
    sums.push_back(entry.kind == Kind::mean ? entry.value : 0);
    sums.push_back(entry.kind == Kind::mean ? entry.weight : 0);
    extremes.push_back(entry.kind == Kind::minimum ? -entry.value : entry.value);
  }
  communicator.all_reduce_sum(sums);
  communicator.all_reduce_max(extremes);
  Json metrics = Json::object();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.kind == Kind::mean && sums[2 * i + 1] > 0) metrics.set(entry.name, sums[2 * i] / sums[2 * i + 1]);
    if (entry.kind == Kind::minimum && std::isfinite(extremes[i])) metrics.set(entry.name, -extremes[i]);
    if (entry.kind == Kind::maximum && std::isfinite(extremes[i])) metrics.set(entry.name, extremes[i]);
    if (entry.kind == Kind::same_real && !std::isnan(entry.value)) metrics.set(entry.name, entry.value);
    if (entry.kind == Kind::same_integer) metrics.set(entry.name, entry.integer);
  }
  return metrics;
}

void add_objective_metrics(MetricTable& table, const Experience& x, const RewardScale& scale,
                           Communicator& communicator) {
  const std::vector<double> scores = scores_of(x.rollouts);
  const Moments score = global_moments(scores, communicator);
  const auto responses = static_cast<double>(x.size());
  const auto tokens = static_cast<double>(x.tokens());
  double k1 = 0, k3 = 0;
  for (size_t t = 0; t < x.log_probs.size(); ++t) {
    const double d = x.log_probs[t] - x.reference_log_probs[t];
    k1 += d;
    k3 += std::exp(-d) - 1 + d;
  }
  table.same("objective/score", score.mean);
  table.same("objective/score_std", score.sd());
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  for (const double value : scores) {
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  table.minimum("objective/score_min", lowest);
  table.maximum("objective/score_max", highest);
  table.same("objective/score_normalized", (score.mean - scale.mean) / scale.sd);
  table.mean("objective/rlhf_reward", sum_of(x.rewards), responses);
  table.mean("objective/kl_seq", k1, responses);
  table.mean("objective/kl_token", k1, tokens);
  table.mean("objective/kl_k3", k3, tokens);
  table.mean("objective/non_score_reward", -scale.kl_coef * k1, responses);
  table.same("objective/kl_coef", scale.kl_coef);
  table.mean("objective/entropy_sampled", -sum_of(x.log_probs), responses);
  table.mean("policy/entropy", sum_of(x.entropies), tokens);
}

void add_response_metrics(MetricTable& table, std::span<const Rollout> rollouts) {
  const auto responses = static_cast<double>(rollouts.size());
  double length = 0, terminated = 0, terminated_length = 0, empty = 0, prompt = 0;
  double shortest = std::numeric_limits<double>::infinity(), longest = -shortest;
  double shortest_prompt = shortest, longest_prompt = -shortest;
  for (const Rollout& rollout : rollouts) {
    const auto tokens = static_cast<double>(rollout.response_length());
    length += tokens;
    shortest = std::min(shortest, tokens);
    longest = std::max(longest, tokens);
    terminated += rollout.terminated ? 1 : 0;
    terminated_length += rollout.terminated ? tokens : 0;
    empty += rollout.terminated && rollout.response_length() == 1 ? 1 : 0;
    prompt += static_cast<double>(rollout.prompt_length);
    shortest_prompt = std::min(shortest_prompt, static_cast<double>(rollout.prompt_length));
    longest_prompt = std::max(longest_prompt, static_cast<double>(rollout.prompt_length));
  }
  table.mean("response/len_mean", length, responses);
  table.minimum("response/len_min", shortest);
  table.maximum("response/len_max", longest);
  table.mean("response/len_terminated_mean", terminated_length, terminated);
  table.mean("response/eos_rate", terminated, responses);
  table.mean("response/truncated_rate", responses - terminated, responses);
  table.mean("response/empty_rate", empty, responses);
  add_repetition(table, rollouts);
  table.mean("prompt/len_mean", prompt, responses);
  table.minimum("prompt/len_min", shortest_prompt);
  table.maximum("prompt/len_max", longest_prompt);
}

void add_decode_metrics(MetricTable& table, const Experience& experience, Communicator& communicator) {
  const Probabilities p = probabilities(experience);
  double sum = 0, largest = 0;
  for (size_t i = 0; i < p.decode.size(); ++i) {
    const double difference = std::abs(p.decode[i] - p.training[i]);
    sum += difference;
    largest = std::max(largest, difference);
  }
  table.mean("rollout/probs_diff_mean", sum, static_cast<double>(p.decode.size()));
  table.maximum("rollout/probs_diff_max", largest);
  table.same("rollout/probs_diff_pearson", correlation(p, communicator));
}

void add_value_metrics(MetricTable& table, const Experience& experience, Communicator& communicator) {
  const Moments returns = global_moments(experience.returns, communicator);
  table.same("value/mean", global_moments(experience.values, communicator).mean);
  table.same("value/explained_var", explained_variance(experience.returns, experience.values, communicator));
  table.same("returns/mean", returns.mean);
  table.same("returns/var", returns.variance);
}

}  // namespace tercet
