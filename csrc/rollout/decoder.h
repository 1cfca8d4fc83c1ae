// One forward of a generator: new tokens of some sequences in, the next token of each out.
#pragma once

#include <span>
#include <vector>

#include "rollout/generator.h"
#include "rollout/kv_cache.h"

namespace tercet {

// New tokens of a sequence that has a slot of the KV cache: its whole prompt, or the token drawn last.
struct NewTokens {
  int64_t slot = 0;
  int64_t cached = 0;            // tokens of the sequence before these
  std::span<const int32_t> ids;  // at least one
  uint64_t sample = 0;           // number of the random stream
  int64_t response_index = 0;    // of the token to be drawn, from 0
};

struct SampledToken {
  int32_t id = 0;
  double log_prob = 0;
};

// The memory of a generator on the device and the work of a step. What is cached is the caller's to know.
class Decoder {
 public:
  static std::vector<Slot> footprint(const OptConfig& config, const GeneratorOptions& options);
  Decoder(OptModel& model, const GeneratorOptions& options, Arena& arena);

  KvCache& cache() { return cache_; }

  // Appends the new tokens of each sequence to the cache and draws its next token. At most `slots` sequences, with at
  // most prefill_tokens + slots tokens. The result is valid until the next call. Throws Error(Fault::run) when logits
  // are not finite.
  std::span<const SampledToken> step(Stream& stream, std::span<const NewTokens> sequences,
                                     const SamplingOptions& sampling);

 private:
  void upload(Stream& stream, std::span<const NewTokens> sequences);
  void draw(Stream& stream, const Tensor& logits, const SamplingOptions& sampling);

  OptModel& model_;
  KvCache cache_;
  Activations activations_;
  LmHead head_;
  DeviceBatch batch_;
  Tensor samples_, positions_, ids_, log_prob_, scratch_;
  RaggedBatch host_batch_;
  std::vector<KvCache::Row> cache_rows_;
  std::vector<int32_t> last_rows_, host_positions_, host_ids_;
  std::vector<int64_t> host_samples_;
  std::vector<std::byte> host_log_prob_;
  std::vector<SampledToken> drawn_;
};

}  // namespace tercet
