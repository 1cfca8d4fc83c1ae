#include "model/model.h"

namespace tercet {

std::vector<Slot> DeviceBatch::footprint(const std::string& name, const BatchCapacity& capacity, Phase first,
                                         Phase last) {
  const auto tokens = static_cast<size_t>(capacity.tokens);
  const auto sequences = static_cast<size_t>(capacity.sequences);
  return {{name + "/tokens", MemoryClass::batch, tokens * sizeof(int32_t), first, last},
          {name + "/offsets", MemoryClass::batch, (sequences + 1) * sizeof(int32_t), first, last},
          {name + "/positions", MemoryClass::batch, tokens * sizeof(int32_t), first, last},
          {name + "/samples", MemoryClass::batch, tokens * sizeof(int64_t), first, last}};
}

DeviceBatch::DeviceBatch(const std::string& name, const BatchCapacity& capacity, Arena& arena)
    : name_(name),
      capacity_(capacity),
      all_tokens_(arena.take(name + "/tokens", DType::i32, {capacity.tokens})),
      all_offsets_(arena.take(name + "/offsets", DType::i32, {capacity.sequences + 1})),
      all_positions_(arena.take(name + "/positions", DType::i32, {capacity.tokens})),
      all_samples_(arena.take(name + "/samples", DType::i64, {capacity.tokens})) {}

void DeviceBatch::upload(Stream& stream, const RaggedBatch& batch) {
  TERCET_REQUIRE(batch.token_count() <= capacity_.tokens && batch.sequences() <= capacity_.sequences,
                 "{}: a batch of {} tokens in {} sequences exceeds the planned {} tokens in {} sequences", name_,
                 batch.token_count(), batch.sequences(), capacity_.tokens, capacity_.sequences);
  tokens = all_tokens_.row_range(0, batch.token_count());
  offsets = all_offsets_.row_range(0, batch.sequences() + 1);
  positions = all_positions_.row_range(0, batch.token_count());
  samples = all_samples_.row_range(0, batch.token_count());
  const auto upload_one = [&](const Tensor& target, const auto& source) {
    stream.copy_to_device(target.data, source.data(), source.size() * sizeof(source[0]));
  };
  upload_one(tokens, batch.tokens);
  upload_one(offsets, batch.offsets);
  upload_one(positions, batch.positions);
  upload_one(samples, batch.samples);
  stream.synchronize();
}

}  // namespace tercet
