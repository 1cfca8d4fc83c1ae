// What `bench step` times: optimiser steps of SFT and of a reward model, and the phases of a PPO iteration, on fresh
// models and random tokens, by the code that trains.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/bench.h"
#include "model/flops.h"

namespace tercet {

struct StepSizes {
  NamedConfig model;   // SFT; actor and reference
  NamedConfig critic;  // reward model; critic
  int64_t tokens = 0;  // of a micro-batch
  int64_t batch = 0;   // sequences, pairs or responses of a step
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  int64_t steps = 0;  // measured, after one that is not

  int64_t length() const { return prompt_tokens + new_tokens; }
};

// One phase of a step.
struct PhaseTime {
  std::string phase;  // "sft", "reward", "ppo generate", "ppo score", "ppo update", "ppo iteration"
  std::string model;
  BenchTime time;
  std::string unit;       // "tokens", "pairs", "sequences"
  double units = 0;       // of a step
  double flops = 0;       // of a step
  size_t plan_bytes = 0;  // of the memory plan, with what the device's streams hold
};

// Weights as init_weights draws them in distribution, out of a pattern that repeats: on the device and at once, where
// billions of normal numbers would take the host minutes. Models of one configuration get equal weights.
void fill_weights(Stream& stream, UnitSet& units, const OptConfig& config);

PhaseTime time_sft(BenchDevice& bench, const StepSizes& sizes);
PhaseTime time_reward(BenchDevice& bench, const StepSizes& sizes);
// Four phases. An iteration has one epoch of one minibatch.
std::vector<PhaseTime> time_ppo(BenchDevice& bench, const StepSizes& sizes);

// All memory of the device that the plan lists.
size_t planned_bytes(const Arena& arena);

// `length` ids that are none of the special ones, a function of the arguments.
std::vector<int32_t> bench_sequence(const OptConfig& config, int64_t length, uint64_t number);

}  // namespace tercet
