// The one loop over steps: cadence of evaluation and checkpoints, metrics, progress, signals, resuming.
#pragma once

#include <functional>
#include <string>

#include "train/run_folder.h"
#include "train/settings.h"

namespace tercet {

class Hdf5Reader;
class Hdf5Writer;
class ProductAlgorithms;

// What a training command does at each point of the loop. Steps count from 1 (optimiser steps, or iterations in PPO).
struct StepHooks {
  std::function<Json(int64_t step)> train;     // one step; returns its metrics (without "step")
  std::function<Json(int64_t step)> evaluate;  // held-out metrics, names "eval/..."; empty: nothing to evaluate
  std::function<uint64_t()> checkpoint_bytes;  // expected size of what save() writes
  std::function<void(Hdf5Writer& file, Json& state)> save;
  std::function<void(const Hdf5Reader& file, const Json& state)> load;
  std::function<std::string(const Json& metrics)> summary;  // the step in a few words, for the terminal
  std::function<double()> flops;          // of all passes so far; timings.jsonl gets the rate of each step
  double peak_flops = 0;                  // per second (peak_rate.h), for the utilisation; 0: not known
  ProductAlgorithms* products = nullptr;  // of the run's stream; kept in checkpoints and products.json, and restored
};

// Runs steps 1 (or the one after the checkpoint) to total_steps. Evaluates before the first step, every eval_every
// steps and after the last. Saves every save_every steps and after the last. Metrics of each step go to metrics.jsonl;
// evaluation is a line of its own with the same step. When a signal asks for a stop it saves what is done, an
// evaluation that is still due among it, and throws Interrupted. Hooks may throw Interrupted too as long as nothing has
// changed: train before it changes the state that save() keeps or writes a log, evaluate before it writes a file.
void run_training_loop(RunFolder& folder, const CommonSettings& settings, int64_t total_steps, const StepHooks& hooks);

// Throws Error(Fault::input), before anything is changed, when a run that is to be resumed has checkpoints none of
// which can be read, or is beyond `total_steps`, or has lost lines of its logs.
void require_resumable(const RunFolder& folder, const CommonSettings& settings, int64_t total_steps);

// The newest good checkpoint under folder/checkpoints ("" when there is none); damaged ones are named in a warning.
std::string latest_checkpoint(const RunFolder& folder);

}  // namespace tercet
