// rollout: generation with a KV cache and continuous batching.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/heads.h"
#include "model/model.h"

namespace tercet {

struct GeneratorOptions {
  std::string prefix;
  DType dtype = DType::f32;
  int64_t slots = 64;               // sequences decoded together
  int64_t max_prompt_tokens = 256;  // prompt with its leading id 2
  int64_t max_new_tokens = 256;
  int64_t prefill_tokens = 1024;    // new prompt tokens processed in one forward; at least max_prompt_tokens
  bool truncating_sampler = false;  // room for top-k and top-p
  bool graphs = true;               // on a GPU: decoding steps are captured and replayed
  Phase first = Phase::rollout;
  Phase last = Phase::rollout;
};

struct SamplingOptions {
  double temperature = 1;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
  uint64_t site = 0;  // tells apart iterations
  int32_t end_id = 2;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // begins with id 2
  uint64_t sample = 0;          // number of the random stream
  int64_t max_new_tokens = 0;
};

enum class Finish { end, length, stopped };

struct Generation {
  std::vector<int32_t> response;  // with its final id 2 when finish is `end`
  std::vector<double> log_probs;  // of the decode path, one per response token
  Finish finish = Finish::length;
};

// Draws responses. A response is a function of weights, prompt, sampling options and request.sample: not of the other
// requests, their order or the number of slots (up to the rounding of products).
class Generator {
 public:
  static std::vector<Slot> footprint(const OptConfig& config, const GeneratorOptions& options);
  Generator(OptModel& model, const GeneratorOptions& options, Arena& arena);
  ~Generator();

  // Asked after each new token of a request, the last one among them, whether to stop it there (stop strings); may be
  // empty. A response that ends with id 2 at that token has finish `end` whatever the answer.
  using StopCheck = std::function<bool(size_t request, std::span<const int32_t> response)>;
  // Told of each response when it is complete, in the order in which they end; may be empty.
  using Finished = std::function<void(size_t request, const Generation& generation)>;

  // One response per request, in their order. Throws Error(Fault::input) when a prompt plus max_new_tokens passes the
  // capacity or the model's positions, a prompt is empty or passes prefill_tokens, or a sampling option has no meaning.
  // An exception of a callback passes through; the generator stays usable.
  std::vector<Generation> generate(Stream& stream, std::span<const GenerationRequest> requests,
                                   const SamplingOptions& sampling, const StopCheck& stop = {},
                                   const Finished& finished = {});

  // FLOP of all responses so far (forward_flops): each token but a response's last is fed once.
  double flops() const;

  // Steps so far that were replays of a captured graph.
  int64_t replayed_steps() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tercet
