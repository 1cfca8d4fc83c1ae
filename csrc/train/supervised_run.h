// What SFT and reward-model training have in common: one model, a loss over items, the same loop, files and
// checkpoints.
#pragma once

#include <optional>

#include "train/evaluation.h"
#include "train/report.h"
#include "train/run_setup.h"
#include "train/steps.h"

namespace tercet {

class SupervisedRun {
 public:
  // `command` is "sft" or "reward"; `model_path` the model that training starts from.
  SupervisedRun(const CommonSettings& settings, const Json& recorded, std::string command, std::string model_path,
                Head head);
  virtual ~SupervisedRun() = default;

  // The whole command; returns the exit code.
  int run();

 protected:
  // Loads training and held-out data; returns the number of training items.
  virtual int64_t load_data() = 0;
  virtual bool has_held_out() const = 0;
  // The most tokens that one item can have.
  virtual int64_t largest_item() const = 0;
  // Accumulates the gradient of the mean loss over the items; returns the step's own metrics, the loss in `loss`.
  virtual Json accumulate(const std::vector<int64_t>& items, const DropoutOptions& dropout, double& loss) = 0;
  // Held-out metrics; lines for samples.jsonl (report_samples.h) without their step are added to `samples`. `last`: no
  // training follows.
  virtual Json evaluate(bool last, std::vector<Json>& samples) = 0;
  // Sets what the finished model's file says besides the weights; adds to `samples` what no evaluation did.
  virtual void complete(ModelInfo& info, std::vector<Json>& samples) = 0;
  virtual std::string summary(const Json& metrics) const = 0;
  // What became of the training or held-out records.
  virtual const DropCounts& drops(bool held_out) const = 0;
  // Memory of the loss itself, beside the model's; planned once limits_ are known.
  virtual std::vector<Slot> own_footprint() const { return {}; }
  virtual void take_own_slots() {}

  const CommonSettings& settings_;
  const Json& recorded_;
  std::string command_;
  std::string model_path_;    // as given
  std::string weights_path_;  // where it is read: the run's own copy on resume
  Head head_;
  RunDevice run_;
  ModelInfo info_;
  Tokenizer tokenizer_;
  EvaluationLimits limits_;
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> model_;
  int64_t tokens_seen_ = 0;  // accumulate() adds to it

 private:
  void prepare();
  void finish(RunFolder& folder, const Json& hashes);
  HtmlTable records_table() const;
  StepHooks hooks(RunFolder& folder);
  static void write_samples(RunFolder& folder, int64_t step, const std::vector<Json>& samples);
  Json train(int64_t step);

  int64_t items_ = 0;
  std::optional<StepSchedule> steps_;
  std::optional<ItemOrder> order_;
  Schedule schedule_;
  StepGuard guard_;
};

}  // namespace tercet
