// What all three steps do before and around their loops: device and dtype, data options, the order of items, the memory
// plan.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"
#include "train/model_instance.h"
#include "train/run_folder.h"
#include "train/training_loop.h"

namespace tercet {

// The device of a run, its stream and its communicator.
struct RunDevice {
  // Sets the number of threads, opens the device and checks the dtype.
  explicit RunDevice(const CommonSettings& settings);

  // The algorithms of the stream's matrix products, or nullptr on a device whose products have but one.
  ProductAlgorithms* products() const;

  // FLOP per second that the device reaches by its data sheet in the run's dtype; 0 when it is not known.
  double peak_flops() const;

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> communicator;
  DType dtype = DType::f32;
};

// "none" or "block"; throws Error(Fault::input) for another word.
Recompute parse_recompute(const std::string& text);

// How the data flags of a command read its files; the template is the model's unless --template says otherwise. Throws
// Error(Fault::input) when --max-length exceeds the model's positions.
DataOptions data_options(const CommonSettings& settings, const std::vector<std::string>& paths, const ModelInfo& model,
                         int split_share);

// --micro-batch-tokens, or when it is 0 the larger of 2,048 and `largest_item`, the most tokens that one item can have.
// Throws Error(Fault::input) when an item does not fit.
int64_t micro_batch_tokens(const CommonSettings& settings, int64_t largest_item);

// The endless sequence of items: epoch after epoch, each in an order of its own, a function of (seed, position).
class ItemOrder {
 public:
  ItemOrder(int64_t items, uint64_t seed) : items_(items), seed_(seed) {}

  // The item at `position` (from 0) of the sequence.
  int64_t at(int64_t position);

 private:
  int64_t items_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

// Optimiser steps of a run: --steps, or as many as --epochs passes over the items take, and the items of each step.
struct StepSchedule {
  StepSchedule(const CommonSettings& settings, int64_t items);

  // Items of step `step` (from 1): batch_size, fewer in the last step of a run by epochs.
  int64_t first_item(int64_t step) const { return (step - 1) * batch_size; }
  int64_t item_count(int64_t step) const;

  int64_t total_steps = 0;
  int64_t batch_size = 0;
  int64_t total_items = 0;
};

AdamWOptions adamw_options(const CommonSettings& settings);

// Prints the plan, allocates it, and remembers it for the report.
std::unique_ptr<Arena> allocate_plan(Device& device, const std::vector<std::vector<Slot>>& footprints);

// {path: hash} of files for config.toml.
Json input_hashes(const std::vector<std::string>& data_paths, const std::vector<std::string>& model_paths);

// What the run's record calls an input file.
std::string recorded_name(const CommonSettings& settings, const std::string& path);

// Where a resumed run reads an input: the copy that the run keeps as inputs/<name> when there is one, so that the
// original may be gone; `path` itself otherwise.
std::string resumed_input(const CommonSettings& settings, const std::string& path, const std::string& name);

// Runs a training command with its signal handlers (signals.h) and returns its exit code: what `body` returns, or that
// of a stop before the run began, of which nothing is left.
int run_with_signals(const std::function<int()>& body);

// Runs what follows once a run has begun, its loop and its last files. Returns the exit code: 0, or that of a stop,
// after telling the terminal how to go on.
int run_until_stopped(const CommonSettings& settings, const std::string& command, const std::function<void()>& body);

// Lets an optimiser step be taken unless a loss or a gradient is not finite; then counts a skip and says which tensor.
// A gradient that fp16 may have overflowed lowers its loss scale; any other skip counts, and the run ends with an
// Error(Fault::run) after `max_skips` of them in a row.
class StepGuard {
 public:
  // The gradients of one model, and how to call them: "the actor's " or "".
  struct Gradients {
    AdamW& optimizer;
    double norm = 0;
    std::string owner;
  };

  explicit StepGuard(int64_t max_skips) : max_skips_(max_skips) {}

  // Whether all losses and norms are finite.
  bool accept(Stream& stream, std::span<const double> losses, std::span<const Gradients> gradients);

  int64_t skipped() const { return skipped_; }
  void save(Json& state) const;
  void load(const Json& state);

 private:
  void skip(const std::string& what);

  int64_t max_skips_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace tercet
