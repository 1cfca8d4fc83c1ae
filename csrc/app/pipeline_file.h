// The file of `rlhf`: one TOML document that says what all three steps do.
#pragma once

#include <string>
#include <vector>

#include "app/command_line.h"

namespace tercet {

// Keys before the first table go to every step that has such a flag (`data` not to [eval]); a step's table wins over
// them. What the pipeline itself decides (models, folders, resuming) is refused.
class PipelineFile {
 public:
  // Throws Error(Fault::input) with file and line for an unknown table or key, and when [model] names no sft.
  explicit PipelineFile(const std::string& path);

  // Of sft, reward, ppo or eval, with the flags that the pipeline sets. Throws Error(Fault::input) as the command does.
  Invocation invocation(const std::string& step, const std::vector<std::string>& arguments) const;

  const std::string& text() const { return text_; }

  // The models that the steps start from; an empty reward_model stands for the result of sft.
  const std::string& sft_model() const { return sft_model_; }
  const std::string& reward_model() const { return reward_model_; }
  // [ppo] reward-rule: a reward in code, for which no reward model is trained; empty without one.
  const std::string& reward_rule() const { return reward_rule_; }
  bool evaluates() const { return evaluates_; }

 private:
  void read_table(const TomlTable& table);
  void read_model(const TomlEntry& entry);
  void read_reward_rule(const TomlEntry& entry);
  void require_known(const TomlEntry& entry) const;
  std::string where(const TomlEntry& entry) const;

  std::string path_, text_, sft_model_, reward_model_, reward_rule_;
  bool evaluates_ = false;
  int64_t reward_line_ = 0;         // of what is said about the reward step; 0: nothing
  std::vector<TomlEntry> entries_;  // of the steps and of all
};

}  // namespace tercet
