// The merges of a BPE vocabulary and their application.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tercet {

// What the merge of two neighbouring ids gives, and its place in the list of merges.
struct Merge {
  int32_t rank;
  int32_t merged;
};

// Merges by pair of ids: a hash table with open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges);

  // False when the pair is present already. At most as many pairs as announced.
  bool insert(int32_t left, int32_t right, Merge merge);
  std::optional<Merge> find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;
  uint64_t mask_;
};

// Applies merges to sequences of ids; keeps its memory between calls. Not for use by two threads at once.
class Merger {
 public:
  explicit Merger(const MergeTable& table) : table_(table) {}

  // Merges `ids` in place until no merge applies: lowest rank first, leftmost first. O(n log n) time.
  void apply(std::vector<int32_t>& ids);

 private:
  struct Candidate {
    int32_t rank;
    int32_t left;  // position
    int32_t merged;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  void apply_short(std::vector<int32_t>& ids);
  void apply_long(std::vector<int32_t>& ids);
  std::optional<Candidate> candidate_at(const std::vector<int32_t>& ids, int32_t left) const;
  void push_candidate(const std::vector<int32_t>& ids, int32_t left);
  bool still_applies(const std::vector<int32_t>& ids, const Candidate& candidate) const;
  void join(std::vector<int32_t>& ids, const Candidate& candidate);

  const MergeTable& table_;
  std::vector<int32_t> ranks_;
  std::vector<Candidate> heap_;
  std::vector<int32_t> previous_;
  std::vector<int32_t> next_;
};

}  // namespace tercet
