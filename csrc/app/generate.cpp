#include <algorithm>

#include "app/inference.h"
#include "base/error.h"
#include "base/log.h"
#include "rollout/text_generation.h"

namespace tercet {
namespace {

std::vector<Prompt> read_prompts(const GenerateSettings& settings, const ModelInfo& info, const Tokenizer& tokenizer) {
  DataOptions options = inference_data_options(settings, info, settings.data);
  options.max_prompt_tokens = settings.max_prompt_tokens;
  if (settings.data.empty())
    return text_prompts(tokenizer, std::vector{settings.prompt}, parse_prompt_template(options.prompt_template));
  PromptData data = load_prompts(options, tokenizer);
  log::info("data: {} prompts, {} tokens; {}", data.prompts.size(), data.tokens, data.drops.text());
  return std::move(data.prompts);
}

void print_generation(const TextGeneration& generation) {
  Json log_probs = Json::array();
  for (const double value : generation.log_probs) log_probs.push_back(value);
  Json json = Json::object();
  json.set("prompt", generation.prompt).set("response", generation.response).set("logprobs", std::move(log_probs));
  json.set("finish", std::string(finish_name(generation.finish)));
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

}  // namespace

int run_generate(const GenerateSettings& settings) {
  RunDevice run = open_run_device(settings);
  const ModelInfo info = read_language_model_info(settings.model);
  const Tokenizer tokenizer = info.tokenizer(settings.model);
  const std::vector<Prompt> prompts = read_prompts(settings, info, tokenizer);
  int64_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.token_count());
  if (longest + settings.max_new_tokens > info.config.max_position_embeddings)
    fail_input(fmt::format("the longest prompt has {} tokens; with {} new ones it exceeds the model's {} positions",
                           longest, settings.max_new_tokens, info.config.max_position_embeddings),
               "--max-new-tokens", "lower it, shorten the prompt, or drop long ones of --data by --max-prompt-tokens");

  const int64_t default_slots = std::min<int64_t>(64, static_cast<int64_t>(prompts.size()));
  const GeneratorOptions generation{.prefix = "generator",
                                    .dtype = run.dtype,
                                    .slots = settings.generation_slots > 0 ? settings.generation_slots : default_slots,
                                    .max_prompt_tokens = longest,
                                    .max_new_tokens = settings.max_new_tokens,
                                    .prefill_tokens = std::max<int64_t>(1024, longest),
                                    .truncating_sampler = truncates(settings)};
  AnsweringModel model(run, settings.model, info, generation);

  TextCallbacks callbacks;
  callbacks.item = [](size_t, const TextGeneration& one) { print_generation(one); };
  generate_texts(*run.stream, model.generator(), tokenizer, prompts, text_generation_options(settings), callbacks);
  return 0;
}

}  // namespace tercet
