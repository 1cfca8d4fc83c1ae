// One forward of a generator: new tokens of some sequences in, the next token of each out.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "device/gpu_stream.h"
#include "kernels/sample.h"
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
//
// On a GPU a step in which each sequence has one new token (decoding) is padded with idle sequences to the next power
// of two, or to `slots`: few shapes occur. The first step of a shape runs plainly; from the second on its kernels are a
// captured graph. Lengths, block tables, tokens and the places in the random streams are read from device memory, so a
// graph lasts as long as the sampling options.
class Decoder {
 public:
  static std::vector<Slot> footprint(const OptConfig& config, const GeneratorOptions& options);
  Decoder(OptModel& model, const GeneratorOptions& options, Arena& arena);

  KvCache& cache() { return cache_; }
  int64_t replayed_steps() const { return replayed_steps_; }

  // Appends the new tokens of each sequence to the cache and draws its next token. At most `slots` sequences, with at
  // most prefill_tokens + slots tokens. The result is valid until the next call. Throws Error(Fault::run) when logits
  // are not finite.
  std::span<const SampledToken> step(Stream& stream, std::span<const NewTokens> sequences,
                                     const SamplingOptions& sampling);

 private:
  // What is fixed in a captured graph beside its shape.
  using GraphKey = std::tuple<const Stream*, uint64_t, double, int64_t, double>;

  int64_t idle_sequences(Stream& stream, std::span<const NewTokens> sequences) const;
  void upload(Stream& stream, std::span<const NewTokens> sequences, int64_t idle);
  void queue(Stream& stream, const SampleArgs& args);
  void queue_decoding(Stream& stream, const SampleArgs& args);
  SampleArgs sample_args(const SamplingOptions& sampling) const;
  void read_back(Stream& stream, size_t count);

  OptModel& model_;
  GeneratorOptions options_;
  KvCache cache_;
  const KvCacheView* cache_view_ = nullptr;  // of this step
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
  int64_t replayed_steps_ = 0;
  GraphKey graph_key_;
  std::map<int64_t, std::unique_ptr<Graph>> graphs_;  // by sequences; nullptr: the shape has run once
};

}  // namespace tercet
