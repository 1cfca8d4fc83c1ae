// Checks of settings that concern more than one flag.
#pragma once

#include "app/flags.h"

namespace tercet {

// Throws Error(Fault::input) that names the flags which do not fit each other, this machine or the files. Settles the
// dtype where none is given, so that a run records it and is resumed in it.
void check_settings(const Command& command, Settings& settings);

}  // namespace tercet
