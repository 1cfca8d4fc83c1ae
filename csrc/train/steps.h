// The three training commands. Each returns the process's exit code: 0 when done, 130, 143 or 0 after a stop by a
// signal that was saved. Errors are exceptions.
#pragma once

#include "base/json.h"
#include "train/settings.h"

namespace tercet {

// Step 1: cross-entropy over loss-carrying tokens; mean over all such tokens of the optimiser step. `recorded` is what
// goes to config.toml: every flag and its value.
int run_sft(const SftSettings& settings, const Json& recorded);

// Step 2: ranking loss on pairs; mean over the pairs of the optimiser step.
int run_reward(const RewardSettings& settings, const Json& recorded);

// Step 3: PPO against a reward model with a critic and a frozen reference.
int run_ppo(const PpoSettings& settings, const Json& recorded);

}  // namespace tercet
