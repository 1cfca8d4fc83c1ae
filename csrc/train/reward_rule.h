// Rewards that are rules in code: --reward-rule of ppo and eval.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "text/tokenizer.h"
#include "train/reward_source.h"

namespace tercet {

struct RewardRule {
  std::string_view name;
  // The class under which load_prompts drops a record with this answer: the rule cannot judge responses by it. Empty
  // when it can.
  std::string_view (*drop_class)(std::string_view answer);
  // Scores of responses to the records that are left, with mean 0 and standard deviation 1: PPO uses them as they are.
  std::unique_ptr<RewardSource> (*source)(const Tokenizer& tokenizer);
};

// "gsm8k": 1 when the final_number() of the response is that of the record's own answer, else 0.
std::span<const RewardRule> reward_rules();

// The rule of that name, which must be known; nullptr for an empty name.
const RewardRule* find_reward_rule(std::string_view name);

// The number after the last "####" of a text, as GSM8K's answers end (K. Cobbe et al., arXiv 2110.14168). Spaces and a
// '$' may come before it and commas stand within it; equal numbers give equal texts: "1,080.50" gives "1080.5". Nothing
// when there is none.
std::optional<std::string> final_number(std::string_view text);

}  // namespace tercet
