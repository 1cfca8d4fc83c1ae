// The version of tercet, as in CMakeLists.txt; it is recorded in every model and run.
#pragma once

#include <string>

namespace tercet {

inline std::string tercet_version() { return "0.1.0"; }

}  // namespace tercet
