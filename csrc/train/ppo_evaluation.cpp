// Evaluation of PpoTrainer: held-out prompts with fixed noise, beside the reference's responses to the same prompts.
#include <algorithm>
#include <cmath>

#include "device/profile_scope.h"
#include "train/evaluation.h"
#include "train/ppo_trainer.h"

namespace tercet {
namespace {

constexpr uint64_t kEvaluationSite = 0;

std::vector<const Prompt*> first_prompts(const std::vector<Prompt>& prompts, size_t count) {
  std::vector<const Prompt*> result;
  for (size_t i = 0; i < std::min(count, prompts.size()); ++i) result.push_back(&prompts[i]);
  return result;
}

std::vector<double> scores_of(const std::vector<Rollout>& rollouts) {
  std::vector<double> scores;
  for (const Rollout& rollout : rollouts) scores.push_back(rollout.score);
  return scores;
}

// Wins of `scores` over `baseline`, ties half.
double wins(std::span<const double> scores, std::span<const double> baseline) {
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) sum += scores[i] > baseline[i] ? 1 : scores[i] == baseline[i] ? 0.5 : 0;
  return sum;
}

void add_win_rate(Json& metrics, const std::string& name, double won, double trials) {
  const Interval interval = wilson_interval(won, trials);
  metrics.set(name, won / trials).set(name + "_low", interval.low).set(name + "_high", interval.high);
}

}  // namespace

void PpoTrainer::prepare_reference_responses(std::span<const Prompt* const> prompts) {
  if (reference_responses_) return;
  TERCET_REQUIRE(models_.reference_generator != nullptr, "evaluation needs a generator of the reference");
  std::vector<Rollout> rollouts = respond(*models_.reference_generator, prompts, kEvaluationSite);
  ReferenceResponses responses;
  score(models_.reward, rollouts);
  responses.scores = scores_of(rollouts);
  if (models_.judge != nullptr) {
    score(*models_.judge, rollouts);
    responses.judge_scores = scores_of(rollouts);
  }
  reference_responses_ = std::move(responses);
}

Json PpoTrainer::evaluate(size_t sample_count, std::vector<Sample>* samples) {
  const ProfileScope scope(stream_, "evaluate");
  TERCET_REQUIRE(!data_.eval_prompts.empty(), "there are no evaluation prompts");
  const std::vector<const Prompt*> prompts = first_prompts(data_.eval_prompts, data_.eval_prompts.size());
  prepare_reference_responses(prompts);
  std::vector<Rollout> rollouts = respond(models_.generator, prompts, kEvaluationSite);
  std::vector<double> judge_scores;
  if (models_.judge != nullptr) {
    score(*models_.judge, rollouts);
    judge_scores = scores_of(rollouts);
  }
  score(models_.reward, rollouts);
  const std::vector<double> scores = scores_of(rollouts);
  Experience x = make_experience(std::move(rollouts));
  compute_log_probs(x);
  for (size_t b = 0; samples != nullptr && b < std::min(sample_count, x.rollouts.size()); ++b) {
    samples->push_back({x.rollouts[b], x.kl(b), {}});
    if (models_.judge != nullptr) samples->back().judge_score = judge_scores[b];
  }

  MetricTable table;
  add_objective_metrics(table, x, reward_scale(), communicator_);
  add_response_metrics(table, x.rollouts);
  const Json all = table.reduce(communicator_);
  const auto trials = static_cast<double>(scores.size());
  Json metrics = Json::object();
  metrics.set("eval/score", all.at("objective/score")).set("eval/score_std", all.at("objective/score_std"));
  metrics.set("eval/score_normalized", all.at("objective/score_normalized"));
  add_win_rate(metrics, "eval/win_rate", wins(scores, reference_responses_->scores), trials);
  if (models_.judge != nullptr) {
    double sum = 0;
    for (const double value : judge_scores) sum += value;
    metrics.set("eval/judge_score", sum / trials);
    add_win_rate(metrics, "eval/judge_win_rate", wins(judge_scores, reference_responses_->judge_scores), trials);
  }
  metrics.set("eval/kl_seq", all.at("objective/kl_seq")).set("eval/entropy", all.at("policy/entropy"));
  metrics.set("eval/len_mean", all.at("response/len_mean")).set("eval/eos_rate", all.at("response/eos_rate"));
  metrics.set("eval/prompts", static_cast<int64_t>(scores.size()));
  return metrics;
}

std::vector<PpoTrainer::Sample> PpoTrainer::samples(size_t count) {
  std::vector<Rollout> rollouts = respond(models_.generator, first_prompts(data_.prompts, count), kEvaluationSite);
  score(models_.reward, rollouts);
  Experience x = make_experience(std::move(rollouts));
  compute_log_probs(x);
  std::vector<Sample> result;
  for (size_t b = 0; b < x.rollouts.size(); ++b) result.push_back({x.rollouts[b], x.kl(b), {}});
  return result;
}

}  // namespace tercet
