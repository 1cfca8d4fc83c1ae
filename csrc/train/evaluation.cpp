#include "train/evaluation.h"

#include <algorithm>
#include <cmath>

#include "train/signals.h"

namespace tercet {
namespace {

std::vector<int64_t> token_counts(std::span<const Sequence* const> sequences) {
  std::vector<int64_t> counts;
  counts.reserve(sequences.size());
  for (const Sequence* sequence : sequences) counts.push_back(sequence->token_count());
  return counts;
}

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace

Interval wilson_interval(double successes, double trials) {
  if (trials <= 0) return {};
  constexpr double z = 1.959963984540054;
  const double p = successes / trials;
  const double denominator = 1 + z * z / trials;
  const double center = (p + z * z / (2 * trials)) / denominator;
  const double half = z * std::sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / denominator;
  return {center - half, center + half};
}

double LanguageModelFigures::perplexity() const { return std::exp(loss); }

LanguageModelFigures evaluate_language_model(ModelInstance& model, std::span<const Sequence> sequences, bool all_tokens,
                                             const EvaluationLimits& limits) {
  std::vector<int64_t> counts;
  for (const Sequence& sequence : sequences) counts.push_back(sequence.token_count());
  LanguageModelFigures figures;
  for (const auto& [begin, end] : cut_micro_batches(counts, limits.tokens, limits.sequences)) {
    throw_if_stop_requested();
    RaggedBatch batch;
    std::vector<int64_t> from;
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& sequence = sequences[static_cast<size_t>(i)];
      batch.append(sequence.ids, sequence.sample);
      from.push_back(all_tokens ? 1 : sequence.prompt_length);
    }
    const ModelInstance::TokenValues values = model.log_probs(batch, prediction_rows(batch, from));
    auto log_prob = values.log_probs.begin();
    for (size_t b = 0; b < from.size(); ++b) {
      const int64_t count = batch.offsets[b + 1] - batch.offsets[b] - from[b];
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        sum -= *log_prob;
        figures.loss -= *log_prob++;
      }
      figures.losses.push_back(count > 0 ? sum / static_cast<double>(count) : 0);
    }
    for (const double entropy : values.entropies) figures.entropy += entropy;
    for (const double likeliest : values.likeliest) figures.token_accuracy += likeliest;
    figures.tokens += static_cast<int64_t>(values.log_probs.size());
  }
  if (figures.tokens > 0) {
    figures.loss /= static_cast<double>(figures.tokens);
    figures.entropy /= static_cast<double>(figures.tokens);
    figures.token_accuracy /= static_cast<double>(figures.tokens);
  }
  return figures;
}

std::vector<double> score_sequences(ModelInstance& model, std::span<const Sequence* const> sequences,
                                    const EvaluationLimits& limits) {
  std::vector<double> scores;
  scores.reserve(sequences.size());
  for (const auto& [begin, end] : cut_micro_batches(token_counts(sequences), limits.tokens, limits.sequences)) {
    throw_if_stop_requested();
    RaggedBatch batch;
    std::vector<int32_t> rows;
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& sequence = *sequences[static_cast<size_t>(i)];
      batch.append(sequence.ids, sequence.sample);
      rows.push_back(batch.offsets.back() - 1);
    }
    const std::vector<double> part = model.scores(batch, rows);
    scores.insert(scores.end(), part.begin(), part.end());
  }
  return scores;
}

PairScores score_pairs(ModelInstance& model, std::span<const PreferencePair> pairs, const EvaluationLimits& limits) {
  std::vector<const Sequence*> sequences;
  for (const PreferencePair& pair : pairs) {
    sequences.push_back(&pair.chosen);
    sequences.push_back(&pair.rejected);
  }
  const std::vector<double> scores = score_sequences(model, sequences, limits);
  PairScores result;
  for (size_t i = 0; i < scores.size(); i += 2) {
    result.chosen.push_back(scores[i]);
    result.rejected.push_back(scores[i + 1]);
  }
  return result;
}

double RewardFigures::accuracy() const {
  return pairs == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(pairs);
}

RewardFigures reward_figures(const PairScores& scores, std::span<const PreferencePair> pairs) {
  RewardFigures figures;
  figures.pairs = static_cast<int64_t>(pairs.size());
  if (pairs.empty()) return figures;
  const auto count = static_cast<double>(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const double margin = scores.chosen[i] - scores.rejected[i];
    figures.correct += margin > 0 ? 1 : 0;
    figures.ties += margin == 0 ? 1 : 0;
    figures.margin_mean += margin / count;
    figures.chosen_mean += scores.chosen[i] / count;
    figures.rejected_mean += scores.rejected[i] / count;
    figures.loss += softplus(-margin) / count;
    const int64_t chosen_length = pairs[i].chosen.answer_length();
    const int64_t rejected_length = pairs[i].rejected.answer_length();
    figures.shorter_wins +=
        (chosen_length < rejected_length ? 1.0 : (chosen_length == rejected_length ? 0.5 : 0.0)) / count;
  }
  figures.score_sd = score_affine(scores).sd;
  return figures;
}

ScoreAffine score_affine(const PairScores& scores) {
  const auto count = static_cast<double>(scores.chosen.size() + scores.rejected.size());
  double mean = 0;
  for (const auto* side : {&scores.chosen, &scores.rejected})
    for (const double score : *side) mean += score / count;
  double variance = 0;
  for (const auto* side : {&scores.chosen, &scores.rejected})
    for (const double score : *side) variance += (score - mean) * (score - mean) / count;
  return {mean, std::sqrt(variance)};
}

}  // namespace tercet
