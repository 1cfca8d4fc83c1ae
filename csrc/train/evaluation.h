// Held-out figures of language models and reward models; shared by the training commands and by `eval`. In a training
// command a stop that was asked for throws Interrupted between two forward passes.
#pragma once

#include <span>
#include <vector>

#include "data/dataset.h"
#include "train/model_instance.h"

namespace tercet {

// The most tokens and sequences of one forward pass of an evaluation.
struct EvaluationLimits {
  int64_t tokens = 0;
  int64_t sequences = 0;
};

// Wilson's score interval of a proportion at 95 %.   E. Wilson, JASA 22, 1927.
struct Interval {
  double low = 0;
  double high = 1;
};
Interval wilson_interval(double successes, double trials);

struct LanguageModelFigures {
  double loss = 0;            // nats per loss-carrying token
  double entropy = 0;         // mean entropy of the prediction
  double token_accuracy = 0;  // share of loss-carrying tokens that are the likeliest prediction
  int64_t tokens = 0;
  std::vector<double> losses;  // of each sequence, nats per loss-carrying token

  double perplexity() const;
};

// Mean cross-entropy over the loss-carrying tokens of all sequences: the answer and its final id 2, or all tokens.
LanguageModelFigures evaluate_language_model(ModelInstance& model, std::span<const Sequence> sequences, bool all_tokens,
                                             const EvaluationLimits& limits);

struct PairScores {
  std::vector<double> chosen, rejected;  // raw
};

// Scores of both answers of each pair at their last tokens.
PairScores score_pairs(ModelInstance& model, std::span<const PreferencePair> pairs, const EvaluationLimits& limits);

// Scores of sequences at their last tokens.
std::vector<double> score_sequences(ModelInstance& model, std::span<const Sequence* const> sequences,
                                    const EvaluationLimits& limits);

struct RewardFigures {
  int64_t pairs = 0;
  int64_t correct = 0;  // chosen scored higher
  int64_t ties = 0;     // count as wrong
  double margin_mean = 0;
  double chosen_mean = 0, rejected_mean = 0, score_sd = 0;
  double loss = 0;          // mean softplus(rejected - chosen)
  double shorter_wins = 0;  // accuracy of "the answer with fewer tokens wins"; equal lengths count half

  double accuracy() const;
  Interval accuracy_interval() const {
    return wilson_interval(static_cast<double>(correct), static_cast<double>(pairs));
  }
};

RewardFigures reward_figures(const PairScores& scores, std::span<const PreferencePair> pairs);

// Mean and population standard deviation of the scores of all answers of the pairs.
ScoreAffine score_affine(const PairScores& scores);

}  // namespace tercet
