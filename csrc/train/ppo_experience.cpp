#include "train/ppo_experience.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tercet {
namespace {

RolloutBatch make_batch(std::span<const Rollout> rollouts, std::span<const int64_t> order) {
  RolloutBatch result;
  std::vector<int64_t> from;
  for (const int64_t index : order) {
    const Rollout& rollout = rollouts[static_cast<size_t>(index)];
    result.rollouts.push_back(index);
    result.batch.append(rollout.ids, rollout.sample);
    result.last_rows.push_back(result.batch.offsets.back() - 1);
    from.push_back(rollout.prompt_length);
  }
  result.rows = prediction_rows(result.batch, from);
  return result;
}

}  // namespace

double Experience::kl(size_t b) const {
  double sum = 0;
  for (auto t = static_cast<size_t>(offsets[b]); t < static_cast<size_t>(offsets[b + 1]); ++t)
    sum += log_probs[t] - reference_log_probs[t];
  return sum;
}

Experience make_experience(std::vector<Rollout> rollouts) {
  Experience experience;
  experience.rollouts = std::move(rollouts);
  for (const Rollout& rollout : experience.rollouts) {
    TERCET_REQUIRE(rollout.prompt_length >= 1 && rollout.response_length() >= 1,
                   "a response of {} tokens to a prompt of {}", rollout.response_length(), rollout.prompt_length);
    experience.offsets.push_back(narrow<int32_t>(experience.offsets.back() + rollout.response_length()));
  }
  const auto tokens = static_cast<size_t>(experience.tokens());
  for (auto* values : {&experience.log_probs, &experience.reference_log_probs, &experience.entropies,
                       &experience.values, &experience.rewards, &experience.advantages, &experience.returns})
    values->assign(tokens, 0);
  return experience;
}

std::vector<double> RolloutBatch::gather(const Experience& experience, std::span<const double> values) const {
  std::vector<double> entries;
  entries.reserve(rows.rows.size());
  for (const int64_t index : rollouts) {
    const auto b = static_cast<size_t>(index);
    entries.insert(entries.end(), values.begin() + experience.offsets[b], values.begin() + experience.offsets[b + 1]);
  }
  return entries;
}

void RolloutBatch::scatter(const Experience& experience, std::span<const double> entries,
                           std::vector<double>& values) const {
  TERCET_REQUIRE(entries.size() == rows.rows.size(), "{} entries for {} response tokens", entries.size(),
                 rows.rows.size());
  auto source = entries.begin();
  for (const int64_t index : rollouts) {
    const auto b = static_cast<size_t>(index);
    const int64_t count = experience.offsets[b + 1] - experience.offsets[b];
    std::copy(source, source + count, values.begin() + experience.offsets[b]);
    source += count;
  }
}

std::vector<RolloutBatch> rollout_batches(std::span<const Rollout> rollouts, std::span<const int64_t> order,
                                          const BatchCapacity& capacity) {
  std::vector<int64_t> lengths;
  for (const int64_t index : order) lengths.push_back(rollouts[static_cast<size_t>(index)].length());
  std::vector<RolloutBatch> batches;
  for (const auto& [begin, end] : cut_micro_batches(lengths, capacity.tokens, capacity.sequences))
    batches.push_back(
        make_batch(rollouts, order.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))));
  return batches;
}

std::vector<RolloutBatch> rollout_batches(std::span<const Rollout> rollouts, const BatchCapacity& capacity) {
  std::vector<int64_t> order(rollouts.size());
  std::iota(order.begin(), order.end(), 0);
  return rollout_batches(rollouts, order, capacity);
}

}  // namespace tercet
