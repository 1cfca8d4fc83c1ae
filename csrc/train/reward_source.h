// Where the reward of a finished response comes from: a reward model, or a function in code.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace tercet {

// A response to be scored, in token ids: prompt (with its leading id 2) and response (with its final id 2 when it
// ended). `answer` is the record's own.
struct ScoredResponse {
  std::span<const int32_t> prompt;
  std::span<const int32_t> response;
  bool terminated = false;
  std::string_view answer = {};
};

class RewardSource {
 public:
  virtual ~RewardSource() = default;
  // One raw score per response, in their order.
  virtual std::vector<double> score(std::span<const ScoredResponse> responses) = 0;
  // PPO uses (score - mean) / sd.
  virtual double mean() const { return 0; }
  virtual double sd() const { return 1; }
};

// A reward that is a function in code.
std::unique_ptr<RewardSource> function_reward(std::function<double(const ScoredResponse&)> function);

// w . h at the last token of prompt and response, by a model with a scalar head, which must outlive the source. Batches
// are cut by the model's capacity, in the order of the responses.
std::unique_ptr<RewardSource> model_reward(class ModelInstance& model, const struct ScoreAffine& affine);

}  // namespace tercet
