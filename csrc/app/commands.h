// app: the command line. One table of flags (flags.h), one file per command; everything else is below.
//
// This header holds the settings of the commands that do not train, and what runs each command.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "train/settings.h"

namespace tercet {

struct InitSettings {
  std::string model_config;  // a released size or a config.json
  std::string tokenizer;     // folder
  std::string out;
  std::string prompt_template = "human-assistant";
  std::string dtype = "fp32";
  uint64_t seed = 1;
};

struct ImportSettings {
  std::string folder;
  std::string out;
  std::string prompt_template;  // empty: the folder's, or human-assistant
  std::string dtype;            // empty: the files'
};

struct ExportSettings {
  std::string model;
  std::string out;
  std::string dtype;  // empty: the file's
  std::string max_shard_size = "5GB";
};

struct InfoSettings {
  std::string model;
  bool json = false;
  bool verify = false;
};

struct TokenizeSettings {
  std::string model;
  bool no_bos = false;
  bool decode = false;
};

// What the commands share that run a model without training it.
struct ModelSettings {
  std::string model;
  std::string prompt_template;  // empty: the model's
  std::string device = "auto";
  std::string dtype;  // empty: the device's
  int threads = 0;    // 0: this process's cores
  bool deterministic = true;
};

// Those that read records.
struct InferenceSettings : ModelSettings {
  std::string fields;
  int64_t max_bad_records = 0;
};

struct ScoreSettings : InferenceSettings {
  std::vector<std::string> data;
  int64_t max_length = 0;          // 0: the model's positions
  int64_t micro_batch_tokens = 0;  // 0: chosen from the longest sequence
};

struct EvalSettings : InferenceSettings {
  std::vector<std::string> data;
  int64_t max_length = 0;          // 0: the model's positions
  int64_t micro_batch_tokens = 0;  // 0: chosen from the longest sequence
  std::string turns = "last";
  bool truncate = false;
  std::string loss_on = "response";
  std::string baseline, reward_model, reward_rule;
  int64_t max_prompt_tokens = 256;
  int64_t max_new_tokens = 256;
  double temperature = 1;
  uint64_t seed = 1;
};

// How `generate` and `chat` draw responses.
struct SamplingSettings {
  int64_t max_new_tokens = 256;
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  std::vector<std::string> stop;
  uint64_t seed = 1;
};

struct GenerateSettings : InferenceSettings, SamplingSettings {
  std::vector<std::string> data;
  std::string prompt;
  int64_t max_prompt_tokens = 0;  // of --data; 0: none is dropped
  int64_t generation_slots = 0;   // 0: 64, or the number of prompts when that is smaller
};

struct ChatSettings : ModelSettings, SamplingSettings {
  int64_t max_prompt_tokens = 0;  // 0: the model's positions less max_new_tokens
};

struct RlhfSettings {
  std::string config;  // a pipeline file
  std::string out;
};

struct CompareSettings {
  std::vector<std::string> runs;  // folders
  std::string out;                // a page; empty: none
};

// Sizes that are 0 or empty are chosen by the device.
struct BenchSettings {
  std::string what;  // kernels or step
  std::string device = "auto";
  std::string dtype;
  int threads = 0;
  std::vector<std::string> model_size;
  int64_t tokens = 0;
  // bench kernels alone:
  std::string ops;
  int64_t repeats = 0;
  // bench step alone:
  std::string critic_size;
  int64_t steps = 0;
  int64_t batch_size = 0;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;

  bool json = false;
  std::string out;
};

using Settings = std::variant<InitSettings, ImportSettings, ExportSettings, InfoSettings, TokenizeSettings,
                              ScoreSettings, EvalSettings, SftSettings, RewardSettings, PpoSettings, RlhfSettings,
                              GenerateSettings, ChatSettings, CompareSettings, BenchSettings>;

// What `eval` prints.
Json evaluate(const EvalSettings& settings);

// Each returns the exit code of the process.
int run_init(const InitSettings& settings, const Json& settings_as_json);
int run_import(const ImportSettings& settings, const Json& settings_as_json);
int run_export(const ExportSettings& settings);
int run_info(const InfoSettings& settings);
int run_tokenize(const TokenizeSettings& settings);
int run_score(const ScoreSettings& settings);
int run_eval(const EvalSettings& settings);
int run_rlhf(const RlhfSettings& settings);
int run_generate(const GenerateSettings& settings);
int run_chat(const ChatSettings& settings);
int run_compare(const CompareSettings& settings);
int run_bench(const BenchSettings& settings);

}  // namespace tercet
