#include "app/pipeline_file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"

namespace tercet {
namespace {

constexpr std::array kSteps = {"sft", "reward", "ppo", "eval"};

bool decided_by_pipeline(const std::string& key) {
  constexpr std::array kKeys = {"model", "actor", "reward-model", "baseline", "out", "resume", "overwrite"};
  return std::ranges::find(kKeys, key) != kKeys.end();
}

bool takes_key(const std::string& step, const std::string& key) {
  return find_flag(*find_command(step), key) != nullptr && !(step == "eval" && key == "data");
}

}  // namespace

PipelineFile::PipelineFile(const std::string& path) : path_(path), text_(read_file(path)) {
  TomlDocument document = parse_toml_document(text_, path);
  for (const TomlTable& table : document.tables) read_table(table);
  for (TomlEntry& entry : document.entries) {
    if (entry.table == "model") {
      read_model(entry);
    } else if (entry.key == "reward-rule") {
      read_reward_rule(entry);
    } else {
      require_known(entry);
      entries_.push_back(std::move(entry));
    }
  }
  if (!reward_rule_.empty() && reward_line_ > 0)
    fail_input("ppo has a reward-rule: no reward model is trained", fmt::format("{}:{}", path, reward_line_),
               "leave out [reward] and the model that it would start from, or the rule");
  if (sft_model_.empty())
    fail_input("the pipeline has no model to start from", path, "write [model] and, below it, sft = \"MODEL.h5\"");
}

std::string PipelineFile::where(const TomlEntry& entry) const {
  return fmt::format("{}:{}: {}", path_, entry.line, entry.key);
}

void PipelineFile::read_table(const TomlTable& table) {
  if (table.name == "eval") evaluates_ = true;
  if (table.name == "reward") reward_line_ = table.line;
  if (table.name != "model" && std::ranges::find(kSteps, table.name) == kSteps.end())
    fail_input(fmt::format("the table [{}] is not known", table.name), fmt::format("{}:{}", path_, table.line),
               "a pipeline has [model], [sft], [reward], [ppo] and [eval]");
}

void PipelineFile::read_model(const TomlEntry& entry) {
  if (entry.key != "sft" && entry.key != "reward")
    fail_input("[model] has no such key", where(entry),
               "it takes sft and reward: the models that these steps start from");
  if (!entry.value.is_string() || entry.value.as_string().empty())
    fail_input("the name of a model file is missing", where(entry), "write it in quotes");
  (entry.key == "sft" ? sft_model_ : reward_model_) = entry.value.as_string();
  if (entry.key == "reward") reward_line_ = entry.line;
}

void PipelineFile::read_reward_rule(const TomlEntry& entry) {
  if (!entry.table.empty() && entry.table != "ppo")
    fail_input("the rule is ppo's, and eval takes it from there", where(entry), "write it under [ppo]");
  if (!entry.value.is_string() || entry.value.as_string().empty())
    fail_input("the name of a rule is missing", where(entry), "write it in quotes");
  reward_rule_ = entry.value.as_string();
}

// Keys in a step's table are checked by its command; those before the first table must belong to some step.
void PipelineFile::require_known(const TomlEntry& entry) const {
  if (decided_by_pipeline(entry.key))
    fail_input("the pipeline decides it", where(entry), "name models under [model], and the folder by --out");
  if (entry.table.empty() && std::ranges::none_of(kSteps, [&](const char* step) { return takes_key(step, entry.key); }))
    fail_input("no step has such a flag", where(entry), "see `tercet sft --help`, `reward`, `ppo` and `eval`");
}

Invocation PipelineFile::invocation(const std::string& step, const std::vector<std::string>& arguments) const {
  std::vector<TomlEntry> shared, own;
  for (const TomlEntry& entry : entries_) {
    if (entry.table == step) own.push_back(entry);
    if (entry.table.empty() && takes_key(step, entry.key)) shared.push_back(entry);
  }
  return configure(*find_command(step), {shared, own}, path_, arguments);
}

}  // namespace tercet
