// The words of --help, which the manual page shares.
#pragma once

#include <string>

#include "app/flags.h"

namespace tercet {

// Headings in the order in which they are shown.
const std::vector<FlagGroup>& flag_groups();
const char* heading(FlagGroup group);

// "--lr X", or "FOLDER" for an argument without a name.
std::string flag_usage(const Flag& flag);

// What the flag does, its default for this command, and what it is called elsewhere.
std::string flag_description(const Command& command, const Flag& flag);

}  // namespace tercet
