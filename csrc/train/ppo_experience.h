// What one PPO iteration collects: responses and, for each response token, what the updates need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "model/heads.h"
#include "train/reward_source.h"

namespace tercet {

// A response to a prompt.
struct Rollout {
  std::vector<int32_t> ids;  // prompt (with its leading id 2) and response (with its final id 2 when it ended)
  int64_t prompt_length = 0;
  uint64_t record = 0;  // of the prompt
  uint64_t sample = 0;  // of the prompt, in random draws
  bool terminated = false;
  std::string answer;                    // of the prompt's record
  std::vector<double> decode_log_probs;  // of the response, by the decode path
  double score = 0;                      // raw

  int64_t length() const { return static_cast<int64_t>(ids.size()); }
  int64_t response_length() const { return length() - prompt_length; }
  std::span<const int32_t> prompt() const { return std::span(ids).first(static_cast<size_t>(prompt_length)); }
  std::span<const int32_t> response() const { return std::span(ids).subspan(static_cast<size_t>(prompt_length)); }
  ScoredResponse scored() const { return {prompt(), response(), terminated, answer}; }
};

// The responses of an iteration that this rank holds. Response b owns entries [offsets[b], offsets[b+1]) of the vectors
// below, one per response token.
struct Experience {
  std::vector<Rollout> rollouts;
  std::vector<int32_t> offsets = {0};
  std::vector<double> log_probs, reference_log_probs;  // of the training path, at the temperature of sampling
  std::vector<double> entropies;                       // of the distribution that the token was drawn from
  std::vector<double> values;                          // of the state before the token
  std::vector<double> rewards, advantages, returns;

  int64_t tokens() const { return offsets.back(); }
  int64_t size() const { return static_cast<int64_t>(rollouts.size()); }
  // sum_t (log_prob - reference_log_prob) of response b: an unbiased estimate of the KL divergence, in nats.
  double kl(size_t b) const;
};

Experience make_experience(std::vector<Rollout> rollouts);

// Some rollouts of an experience as one ragged batch.
struct RolloutBatch {
  std::vector<int64_t> rollouts;  // their numbers
  RaggedBatch batch;
  PredictionRows rows;             // of all response tokens: the row before each, and the token
  std::vector<int32_t> last_rows;  // of the last token of each sequence

  // The entries of `values` (one per response token of the experience) that belong to `rows`.
  std::vector<double> gather(const Experience& experience, std::span<const double> values) const;
  // The reverse: entries[i] belongs to rows.rows[i].
  void scatter(const Experience& experience, std::span<const double> entries, std::vector<double>& values) const;
};

// The rollouts numbered `order`, in this order, cut into batches that fit the capacity. Throws Error(Fault::input)
// that names --micro-batch-tokens when one alone does not fit.
std::vector<RolloutBatch> rollout_batches(std::span<const Rollout> rollouts, std::span<const int64_t> order,
                                          const BatchCapacity& capacity);
// All of them, in their order.
std::vector<RolloutBatch> rollout_batches(std::span<const Rollout> rollouts, const BatchCapacity& capacity);

}  // namespace tercet
