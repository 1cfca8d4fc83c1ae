// What score, eval, generate and chat share: the device, the data options, models that are not trained.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "rollout/generator.h"
#include "rollout/text_generation.h"
#include "train/evaluation.h"
#include "train/run_setup.h"

namespace tercet {

// The device of an inference command. Sets the number of threads.
RunDevice open_run_device(const ModelSettings& settings);

// Data options; the template is the model's unless --template says otherwise.
DataOptions inference_data_options(const InferenceSettings& settings, const ModelInfo& info,
                                   const std::vector<std::string>& paths);

// --max-length, by default the model's positions. Throws Error(Fault::input) when it exceeds them.
int64_t longest_length(int64_t max_length, const OptConfig& config);

// Limits of one forward pass: --micro-batch-tokens, by default the larger of 2,048 and `longest`. Throws
// Error(Fault::input) when a sequence does not fit.
EvaluationLimits forward_limits(int64_t micro_batch_tokens, int64_t longest);

// A model file with the weights in memory, planned for forward passes within the limits. Prints the plan.
class ScoringModel {
 public:
  ScoringModel(RunDevice& run, const std::string& path, const ModelInfo& info, const EvaluationLimits& limits);

  ModelInstance& instance() { return *instance_; }

 private:
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> instance_;
};

// What a model file says about itself. Throws Error(Fault::input) for a reward model, which cannot answer prompts.
ModelInfo read_language_model_info(const std::string& path);

TextGenerationOptions text_generation_options(const SamplingSettings& settings);

// Whether drawing needs the memory of a truncating sampler (GeneratorOptions).
bool truncates(const SamplingSettings& settings);

// A language model file with the weights in memory and a generator that draws its responses. Prints the plan.
class AnsweringModel {
 public:
  AnsweringModel(RunDevice& run, const std::string& path, const ModelInfo& info, const GeneratorOptions& options);

  Generator& generator() { return *generator_; }

 private:
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> instance_;
  std::optional<Generator> generator_;
};

// Throws Error(Fault::input) unless both files have the same tokenizer.
void require_same_tokenizer(const ModelInfo& a, const std::string& a_path, const ModelInfo& b,
                            const std::string& b_path);

}  // namespace tercet
