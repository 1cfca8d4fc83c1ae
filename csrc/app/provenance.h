// How a model file came to be.
#pragma once

#include "base/json.h"

namespace tercet {

// {"command", "version", "settings"}; what the command read is added under "inputs".
Json make_provenance(const std::string& command, const Json& settings_as_json);

}  // namespace tercet
