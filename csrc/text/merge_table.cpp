#include "text/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/checked.h"
#include "base/error.h"

namespace tercet {
namespace {

constexpr uint64_t no_pair = ~uint64_t{0};
constexpr int32_t no_rank = std::numeric_limits<int32_t>::max();
constexpr int32_t removed = -1;  // the id of a position that was merged into its left neighbour

// Up to here a scan for the lowest rank beats the heap.
constexpr size_t short_length = 32;

uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Slot{no_pair, {0, 0}}), mask_(slots_.size() - 1) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  uint64_t slot = (pair * 0x9E3779B97F4A7C15u) >> 32;
  while (slots_[slot & mask_].pair != pair && slots_[slot & mask_].pair != no_pair) ++slot;
  return slot & mask_;
}

bool MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair != no_pair) return false;
  slot = {pair_key(left, right), merge};
  return true;
}

std::optional<Merge> MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair == no_pair) return std::nullopt;
  return slot.merge;
}

void Merger::apply(std::vector<int32_t>& ids) {
  if (ids.size() < 2) return;
  if (ids.size() <= short_length) {
    apply_short(ids);
  } else {
    apply_long(ids);
  }
}

void Merger::apply_short(std::vector<int32_t>& ids) {
  const auto rank_at = [&](size_t left) {
    const auto merge = table_.find(ids[left], ids[left + 1]);
    return merge ? merge->rank : no_rank;
  };
  ranks_.resize(ids.size() - 1);
  for (size_t left = 0; left < ranks_.size(); ++left) ranks_[left] = rank_at(left);
  while (!ranks_.empty()) {
    const auto lowest = std::min_element(ranks_.begin(), ranks_.end());
    if (*lowest == no_rank) break;
    const auto left = static_cast<size_t>(lowest - ranks_.begin());
    ids[left] = table_.find(ids[left], ids[left + 1])->merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(left) + 1);
    ranks_.erase(lowest);
    if (left > 0) ranks_[left - 1] = rank_at(left - 1);
    if (left < ranks_.size()) ranks_[left] = rank_at(left);
  }
}

void Merger::apply_long(std::vector<int32_t>& ids) {
  const auto count = narrow<int32_t>(ids.size());
  previous_.resize(ids.size());
  next_.resize(ids.size());
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    previous_[static_cast<size_t>(i)] = i - 1;
    next_[static_cast<size_t>(i)] = i + 1 < count ? i + 1 : -1;
    if (const auto candidate = candidate_at(ids, i)) heap_.push_back(*candidate);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate best = heap_.back();
    heap_.pop_back();
    if (still_applies(ids, best)) join(ids, best);
  }
  std::erase(ids, removed);
}

std::optional<Merger::Candidate> Merger::candidate_at(const std::vector<int32_t>& ids, int32_t left) const {
  const int32_t right = left < 0 ? -1 : next_[static_cast<size_t>(left)];
  if (right < 0) return std::nullopt;
  const auto merge = table_.find(ids[static_cast<size_t>(left)], ids[static_cast<size_t>(right)]);
  if (!merge) return std::nullopt;
  return Candidate{merge->rank, left, merge->merged};
}

void Merger::push_candidate(const std::vector<int32_t>& ids, int32_t left) {
  const auto candidate = candidate_at(ids, left);
  if (!candidate) return;
  heap_.push_back(*candidate);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

// A candidate is stale when either of its two ids has been merged with another since it was pushed.
bool Merger::still_applies(const std::vector<int32_t>& ids, const Candidate& candidate) const {
  const auto now = candidate_at(ids, candidate.left);
  return now && now->rank == candidate.rank;
}

void Merger::join(std::vector<int32_t>& ids, const Candidate& candidate) {
  const auto left = static_cast<size_t>(candidate.left);
  const auto right = static_cast<size_t>(next_[left]);
  ids[left] = candidate.merged;
  ids[right] = removed;
  next_[left] = next_[right];
  if (next_[left] >= 0) previous_[static_cast<size_t>(next_[left])] = candidate.left;
  push_candidate(ids, previous_[left]);
  push_candidate(ids, candidate.left);
}

}  // namespace tercet
