// Device memory of PPO itself, beside that of its models.
#pragma once

#include <vector>

#include "device/memory_plan.h"
#include "model/model.h"

namespace tercet {

struct PpoBufferOptions {
  DType dtype = DType::f32;  // of the models; values here have its statistics dtype
  int64_t responses = 0;     // of an iteration
  int64_t response_tokens = 0;
  BatchCapacity capacity;  // of a micro-batch
};

struct PpoBuffers {
  static std::vector<Slot> footprint(const PpoBufferOptions& options);
  PpoBuffers(const PpoBufferOptions& options, Arena& arena);

  // The responses of an iteration, phase `score`: R response tokens of B responses.
  Tensor log_probs, reference_log_probs, values, rewards, advantages, returns;  // [R]
  Tensor scores;                                                                // [B]
  Tensor terminated;                                                            // [B] uint8
  Tensor offsets;                                                               // [B+1] int32
  Tensor sums;                                                                  // [2] fp64

  // A micro-batch of the actor, phase `train_actor`.
  Tensor old_log_probs, batch_advantages;  // [response tokens]
  Tensor policy_statistics;                // [8] fp64
  Tensor max_ratio_deviation;              // [1] fp64

  // A micro-batch of the critic, phase `train_critic`.
  Tensor new_values, old_values, batch_returns;  // [response tokens]
  Tensor value_statistics;                       // [4] fp64
};

}  // namespace tercet
