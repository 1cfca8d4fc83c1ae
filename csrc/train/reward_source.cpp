#include "train/reward_source.h"

#include "train/model_instance.h"
#include "train/signals.h"

namespace tercet {
namespace {

class FunctionReward final : public RewardSource {
 public:
  explicit FunctionReward(std::function<double(const ScoredResponse&)> function) : function_(std::move(function)) {}

  std::vector<double> score(std::span<const ScoredResponse> responses) override {
    std::vector<double> scores;
    for (const ScoredResponse& response : responses) scores.push_back(function_(response));
    return scores;
  }

 private:
  std::function<double(const ScoredResponse&)> function_;
};

class ModelReward final : public RewardSource {
 public:
  ModelReward(ModelInstance& model, const ScoreAffine& affine) : model_(model), affine_(affine) {
    TERCET_REQUIRE(model.options().head == Head::scalar, "{} is not a reward model", model.options().prefix);
    TERCET_REQUIRE(affine.sd > 0, "scores with a standard deviation of {}", affine.sd);
  }

  std::vector<double> score(std::span<const ScoredResponse> responses) override {
    std::vector<int64_t> lengths;
    for (const ScoredResponse& r : responses)
      lengths.push_back(static_cast<int64_t>(r.prompt.size() + r.response.size()));
    const BatchCapacity& capacity = model_.options().capacity;
    std::vector<double> scores;
    for (const auto& [begin, end] : cut_micro_batches(lengths, capacity.tokens, capacity.sequences)) {
      throw_if_stop_requested();
      const auto part = score_batch(responses.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      scores.insert(scores.end(), part.begin(), part.end());
    }
    return scores;
  }

  double mean() const override { return affine_.mean; }
  double sd() const override { return affine_.sd; }

 private:
  std::vector<double> score_batch(std::span<const ScoredResponse> responses) {
    RaggedBatch batch;
    std::vector<int32_t> last_rows;
    for (const ScoredResponse& response : responses) {
      std::vector<int32_t> ids(response.prompt.begin(), response.prompt.end());
      ids.insert(ids.end(), response.response.begin(), response.response.end());
      batch.append(ids, 0);
      last_rows.push_back(batch.offsets.back() - 1);
    }
    return model_.scores(batch, last_rows);
  }

  ModelInstance& model_;
  ScoreAffine affine_;
};

}  // namespace

std::unique_ptr<RewardSource> function_reward(std::function<double(const ScoredResponse&)> function) {
  return std::make_unique<FunctionReward>(std::move(function));
}

std::unique_ptr<RewardSource> model_reward(ModelInstance& model, const ScoreAffine& affine) {
  return std::make_unique<ModelReward>(model, affine);
}

}  // namespace tercet
