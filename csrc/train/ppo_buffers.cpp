#include "train/ppo_buffers.h"

namespace tercet {
namespace {

struct Spec {
  const char* name;
  Tensor PpoBuffers::*member;
  DType dtype;
  int64_t elements;
  Phase phase;
};

std::vector<Spec> specs(const PpoBufferOptions& o) {
  const DType real = statistics_dtype(o.dtype);
  const int64_t tokens = o.response_tokens;
  const int64_t rows = o.capacity.tokens;
  return {
      {"ppo/log_probs", &PpoBuffers::log_probs, real, tokens, Phase::score},
      {"ppo/reference_log_probs", &PpoBuffers::reference_log_probs, real, tokens, Phase::score},
      {"ppo/values", &PpoBuffers::values, real, tokens, Phase::score},
      {"ppo/rewards", &PpoBuffers::rewards, real, tokens, Phase::score},
      {"ppo/advantages", &PpoBuffers::advantages, real, tokens, Phase::score},
      {"ppo/returns", &PpoBuffers::returns, real, tokens, Phase::score},
      {"ppo/scores", &PpoBuffers::scores, real, o.responses, Phase::score},
      {"ppo/terminated", &PpoBuffers::terminated, DType::u8, o.responses, Phase::score},
      {"ppo/offsets", &PpoBuffers::offsets, DType::i32, o.responses + 1, Phase::score},
      {"ppo/sums", &PpoBuffers::sums, DType::f64, 2, Phase::score},
      {"ppo/old_log_probs", &PpoBuffers::old_log_probs, real, rows, Phase::train_actor},
      {"ppo/batch_advantages", &PpoBuffers::batch_advantages, real, rows, Phase::train_actor},
      {"ppo/policy_statistics", &PpoBuffers::policy_statistics, DType::f64, 8, Phase::train_actor},
      {"ppo/max_ratio_deviation", &PpoBuffers::max_ratio_deviation, DType::f64, 1, Phase::train_actor},
      {"ppo/new_values", &PpoBuffers::new_values, real, rows, Phase::train_critic},
      {"ppo/old_values", &PpoBuffers::old_values, real, rows, Phase::train_critic},
      {"ppo/batch_returns", &PpoBuffers::batch_returns, real, rows, Phase::train_critic},
      {"ppo/value_statistics", &PpoBuffers::value_statistics, DType::f64, 4, Phase::train_critic},
  };
}

}  // namespace

std::vector<Slot> PpoBuffers::footprint(const PpoBufferOptions& options) {
  std::vector<Slot> slots;
  for (const Spec& spec : specs(options))
    slots.push_back({spec.name, MemoryClass::workspace, static_cast<size_t>(spec.elements) * dtype_size(spec.dtype),
                     spec.phase, spec.phase});
  return slots;
}

PpoBuffers::PpoBuffers(const PpoBufferOptions& options, Arena& arena) {
  for (const Spec& spec : specs(options)) this->*spec.member = arena.take(spec.name, spec.dtype, {spec.elements});
}

}  // namespace tercet
