// The parts of the table of flags (flags.h), one per heading of --help or two, and the checks that they share.
#pragma once

#include <string>
#include <vector>

#include "app/flags.h"
#include "train/steps.h"

namespace tercet {

std::vector<Flag> file_flags();
std::vector<Flag> data_flags();
std::vector<Flag> training_flags();
std::vector<Flag> ppo_flags();
std::vector<Flag> sampling_flags();
std::vector<Flag> measuring_flags();
std::vector<Flag> device_flags();
std::vector<Flag> run_flags();

// Numbers.
FlagCheck positive();
FlagCheck not_negative();
FlagCheck unit_interval();  // [0, 1]
FlagCheck below_one();      // [0, 1)
FlagCheck share();          // (0, 1]
FlagCheck at_least_two();
// Texts; an empty one stands for a flag that is not given.
FlagCheck one_of(std::vector<std::string> names);
// A switch that cannot be off.
FlagCheck always_on();

// ppo refuses the flag.
Flag::Refusal refused_by_ppo(std::string what, std::string remedy);

}  // namespace tercet
