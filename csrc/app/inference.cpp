#include "app/inference.h"

#include <algorithm>

#include "base/error.h"

namespace tercet {

RunDevice open_run_device(const ModelSettings& settings) {
  CommonSettings common;
  common.device = settings.device;
  common.dtype = settings.dtype;
  common.threads = settings.threads;
  return RunDevice(common);
}

DataOptions inference_data_options(const InferenceSettings& settings, const ModelInfo& info,
                                   const std::vector<std::string>& paths) {
  DataOptions options;
  options.paths = paths;
  options.fields = settings.fields;
  options.prompt_template = settings.prompt_template.empty() ? info.prompt_template : settings.prompt_template;
  options.max_bad_records = settings.max_bad_records;
  return options;
}

int64_t longest_length(int64_t max_length, const OptConfig& config) {
  if (max_length > config.max_position_embeddings)
    fail_input(fmt::format("{} exceeds the {} positions of the model", max_length, config.max_position_embeddings),
               "--max-length", "give a smaller length");
  return max_length == 0 ? config.max_position_embeddings : max_length;
}

EvaluationLimits forward_limits(int64_t micro_batch_tokens, int64_t longest) {
  if (micro_batch_tokens > 0 && micro_batch_tokens < longest)
    fail_input(fmt::format("{} is too small: one sequence has {} tokens", micro_batch_tokens, longest),
               "--micro-batch-tokens", "raise it or lower --max-length");
  const int64_t tokens = micro_batch_tokens > 0 ? micro_batch_tokens : std::max<int64_t>(2048, longest);
  return {tokens, tokens};
}

ScoringModel::ScoringModel(RunDevice& run, const std::string& path, const ModelInfo& info,
                           const EvaluationLimits& limits) {
  const ModelInstanceOptions options{.prefix = "model",
                                     .config = info.config,
                                     .head = info.head,
                                     .dtype = run.dtype,
                                     .capacity = {limits.tokens, limits.sequences}};
  arena_ = allocate_plan(*run.device, {ModelInstance::footprint(options)});
  instance_.emplace(options, *arena_, *run.stream, *run.communicator);
  arena_->require_all_taken();
  read_weights(*run.stream, path, instance_->units());
}

ModelInfo read_language_model_info(const std::string& path) {
  ModelInfo info = read_model_info(path);
  if (info.head != Head::language_model)
    fail_input("a reward model cannot answer prompts", "--model " + path, "give a language model");
  return info;
}

TextGenerationOptions text_generation_options(const SamplingSettings& settings) {
  return {.sampling = {.temperature = settings.temperature,
                       .top_k = settings.top_k,
                       .top_p = settings.top_p,
                       .seed = settings.seed},
          .max_new_tokens = settings.max_new_tokens,
          .stops = settings.stop};
}

bool truncates(const SamplingSettings& settings) { return settings.top_k > 0 || settings.top_p < 1; }

AnsweringModel::AnsweringModel(RunDevice& run, const std::string& path, const ModelInfo& info,
                               const GeneratorOptions& options) {
  const ModelInstanceOptions model{
      .prefix = "model", .config = info.config, .head = info.head, .dtype = run.dtype, .inference = false};
  arena_ = allocate_plan(*run.device, {ModelInstance::footprint(model), Generator::footprint(info.config, options)});
  instance_.emplace(model, *arena_, *run.stream, *run.communicator);
  generator_.emplace(instance_->model(), options, *arena_);
  arena_->require_all_taken();
  read_weights(*run.stream, path, instance_->units());
}

void require_same_tokenizer(const ModelInfo& a, const std::string& a_path, const ModelInfo& b,
                            const std::string& b_path) {
  if (a.vocab_json != b.vocab_json || a.merges_txt != b.merges_txt)
    fail_input(fmt::format("its tokenizer is not that of {}", a_path), b_path, "compare models with one tokenizer");
}

}  // namespace tercet
