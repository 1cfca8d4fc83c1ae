// The KV cache of a generator, and which sequence holds which of its blocks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace tercet {

// Hands out the numbers [0, blocks). The block freed last is given first.
class BlockAllocator {
 public:
  explicit BlockAllocator(int64_t blocks);

  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }

  // Throws Error(Fault::run) when no block is free.
  int32_t allocate();
  // Throws Error(Fault::run) unless the block is allocated.
  void release(int32_t block);

 private:
  std::vector<int32_t> free_;
  std::vector<bool> allocated_;
};

struct KvCacheOptions {
  std::string prefix;  // of all slot names
  DType dtype = DType::f32;
  int64_t slots = 1;            // sequences cached at a time
  int64_t tokens_per_slot = 1;  // the most that one of them caches
  Phase first = Phase::rollout;
  Phase last = Phase::rollout;
};

// Keys and values of all layers: [blocks, 32, H] each, with slots * ceil(tokens_per_slot / 32) blocks, and the block
// table of each slot. W. Kwon et al., "Efficient memory management for large language model serving with
// PagedAttention", 2023.
class KvCache {
 public:
  static std::vector<Slot> footprint(const OptConfig& config, const KvCacheOptions& options);
  KvCache(const OptConfig& config, const KvCacheOptions& options, Arena& arena);

  // Gives an empty slot the blocks for `tokens` tokens. Throws Error(Fault::run) when the slot holds blocks already or
  // cannot hold that many.
  void reserve(int64_t slot, int64_t tokens);
  // Frees the slot's blocks; a slot without any stays so.
  void release(int64_t slot);
  void release_all();

  int64_t free_blocks() const { return allocator_.free_blocks(); }

  // A sequence of a batch: where it lies and how many of its tokens are cached before the forward.
  struct Row {
    int64_t slot = 0;
    int64_t cached = 0;
  };

  // Queues the block tables and lengths of the batch whose sequence b is rows[b], at most one per slot, and which ends
  // with `idle` empty sequences of no slot (length 0). Returns the view for its forward, which is valid until the next
  // call. At most `slots` sequences in all.
  const KvCacheView& upload(Stream& stream, std::span<const Row> rows, int64_t idle = 0);

 private:
  KvCacheOptions options_;
  int64_t blocks_per_slot_;
  BlockAllocator allocator_;
  std::vector<std::vector<int32_t>> tables_;  // per slot
  Tensor block_table_, lengths_;              // of all slots
  std::vector<int32_t> host_block_table_, host_lengths_;
  KvCacheView view_;
};

}  // namespace tercet
