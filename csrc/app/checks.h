// Checks of settings that concern more than one flag.
#pragma once

#include "app/flags.h"

namespace tercet {

// Throws Error(Fault::input) that names the flags which do not fit each other, this machine or the files.
void check_settings(const Command& command, const Settings& settings);

}  // namespace tercet
