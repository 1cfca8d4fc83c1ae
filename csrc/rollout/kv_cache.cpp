#include "rollout/kv_cache.h"

#include <algorithm>

#include "base/checked.h"
#include "kernels/paged_attention.h"

namespace tercet {
namespace {

std::string layer_name(const KvCacheOptions& options, int64_t layer, const char* what) {
  return fmt::format("{}/kv_cache/layers.{}/{}", options.prefix, layer, what);
}

std::string table_name(const KvCacheOptions& options) { return options.prefix + "/kv_cache/block_table"; }

std::string lengths_name(const KvCacheOptions& options) { return options.prefix + "/kv_cache/lengths"; }

int64_t blocks_per_slot(const KvCacheOptions& options) {
  TERCET_REQUIRE(options.slots >= 1 && options.tokens_per_slot >= 1, "a KV cache of {} slots of {} tokens",
                 options.slots, options.tokens_per_slot);
  return ceil_div(options.tokens_per_slot, kKvBlockTokens);
}

}  // namespace

BlockAllocator::BlockAllocator(int64_t blocks) : allocated_(narrow<size_t>(blocks), false) {
  free_.reserve(allocated_.size());
  for (int64_t block = blocks; block-- > 0;) free_.push_back(narrow<int32_t>(block));
}

int32_t BlockAllocator::allocate() {
  TERCET_REQUIRE(!free_.empty(), "all {} blocks of the KV cache are in use", allocated_.size());
  const int32_t block = free_.back();
  free_.pop_back();
  allocated_[static_cast<size_t>(block)] = true;
  return block;
}

void BlockAllocator::release(int32_t block) {
  TERCET_REQUIRE(block >= 0 && static_cast<size_t>(block) < allocated_.size() && allocated_[static_cast<size_t>(block)],
                 "block {} of the KV cache is released without being in use", block);
  allocated_[static_cast<size_t>(block)] = false;
  free_.push_back(block);
}

std::vector<Slot> KvCache::footprint(const OptConfig& config, const KvCacheOptions& options) {
  const int64_t table_entries = checked_mul(options.slots, blocks_per_slot(options));
  const int64_t elements = checked_mul(checked_mul(table_entries, kKvBlockTokens), config.hidden_size);
  const auto bytes = [](int64_t count, DType dtype) { return narrow<size_t>(count) * dtype_size(dtype); };
  std::vector<Slot> slots;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (const char* what : {"k", "v"})
      slots.push_back({layer_name(options, layer, what), MemoryClass::kv_cache, bytes(elements, options.dtype),
                       options.first, options.last});
  slots.push_back(
      {table_name(options), MemoryClass::kv_cache, bytes(table_entries, DType::i32), options.first, options.last});
  slots.push_back(
      {lengths_name(options), MemoryClass::kv_cache, bytes(options.slots, DType::i32), options.first, options.last});
  return slots;
}

KvCache::KvCache(const OptConfig& config, const KvCacheOptions& options, Arena& arena)
    : options_(options),
      blocks_per_slot_(blocks_per_slot(options)),
      allocator_(options.slots * blocks_per_slot_),
      tables_(static_cast<size_t>(options.slots)) {
  const int64_t blocks = options.slots * blocks_per_slot_;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto take = [&](const char* what) {
      return arena.take(layer_name(options, layer, what), options.dtype, {blocks, kKvBlockTokens, config.hidden_size});
    };
    view_.k.push_back(take("k"));
    view_.v.push_back(take("v"));
  }
  block_table_ = arena.take(table_name(options), DType::i32, {options.slots, blocks_per_slot_});
  lengths_ = arena.take(lengths_name(options), DType::i32, {options.slots});
}

void KvCache::reserve(int64_t slot, int64_t tokens) {
  auto& table = tables_.at(static_cast<size_t>(slot));
  TERCET_REQUIRE(table.empty(), "slot {} of the KV cache is in use", slot);
  TERCET_REQUIRE(tokens >= 1 && tokens <= options_.tokens_per_slot, "{} tokens in a KV cache slot of {}", tokens,
                 options_.tokens_per_slot);
  for (int64_t block = 0; block < ceil_div(tokens, kKvBlockTokens); ++block) table.push_back(allocator_.allocate());
}

void KvCache::release(int64_t slot) {
  auto& table = tables_.at(static_cast<size_t>(slot));
  for (const int32_t block : table) allocator_.release(block);
  table.clear();
}

void KvCache::release_all() {
  for (int64_t slot = 0; slot < options_.slots; ++slot) release(slot);
}

const KvCacheView& KvCache::upload(Stream& stream, std::span<const Row> rows, int64_t idle) {
  const auto sequences = static_cast<int64_t>(rows.size()) + idle;
  TERCET_REQUIRE(sequences <= options_.slots, "{} sequences in a KV cache of {} slots", sequences, options_.slots);
  const auto width = static_cast<size_t>(blocks_per_slot_);
  host_block_table_.assign(static_cast<size_t>(sequences) * width, 0);
  host_lengths_.clear();
  for (size_t row = 0; row < rows.size(); ++row) {
    const auto& table = tables_.at(static_cast<size_t>(rows[row].slot));
    std::copy(table.begin(), table.end(), host_block_table_.begin() + static_cast<std::ptrdiff_t>(row * width));
    host_lengths_.push_back(narrow<int32_t>(rows[row].cached));
  }
  host_lengths_.insert(host_lengths_.end(), static_cast<size_t>(idle), 0);
  view_.block_table = block_table_.row_range(0, sequences);
  view_.lengths = lengths_.row_range(0, sequences);
  stream.copy_to_device(view_.block_table.data, host_block_table_.data(), host_block_table_.size() * sizeof(int32_t));
  stream.copy_to_device(view_.lengths.data, host_lengths_.data(), host_lengths_.size() * sizeof(int32_t));
  return view_;
}

}  // namespace tercet
