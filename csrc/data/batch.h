// Ragged batches, the order of an epoch, and the cutting of an optimiser step into micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tercet {

// T tokens of B sequences, one after another without padding.
struct RaggedBatch {
  std::vector<int32_t> tokens;         // [T]
  std::vector<int32_t> offsets = {0};  // [B + 1]; sequence b is tokens[offsets[b], offsets[b + 1])
  std::vector<int32_t> positions;      // [T], from 0 in each sequence
  std::vector<int64_t> samples;        // [T], the sequence's number in random draws

  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }

  // Appends a sequence, which may be empty. Throws Error(Fault::run) beyond 2^31 - 1 tokens.
  void append(std::span<const int32_t> ids, uint64_t sample);
  // Appends tokens (id 0) that are of no sequence, each beside an empty sequence.
  void append_idle(int64_t count);
  // Back to B = 0, keeping the memory.
  void clear();
};

// The order in which epoch `epoch` visits n items: a uniform permutation of [0, n), a function of the arguments only
// (Fisher-Yates over RandomPurpose::shuffle).
std::vector<int64_t> epoch_order(int64_t n, uint64_t seed, uint64_t epoch);

// Cuts items with the given token counts, in the order given, into consecutive micro-batches [begin, end), each filled
// as far as max_tokens tokens and max_sequences items allow (both at least 1). No items: no micro-batches. Throws
// Error(Fault::input) that names --micro-batch-tokens when one item alone exceeds max_tokens.
std::vector<std::pair<int64_t, int64_t>> cut_micro_batches(std::span<const int64_t> token_counts, int64_t max_tokens,
                                                           int64_t max_sequences);

}  // namespace tercet
