#include "app/provenance.h"

#include "train/version.h"

namespace tercet {

Json make_provenance(const std::string& command, const Json& settings_as_json) {
  Json provenance = Json::object();
  provenance.set("command", command).set("version", tercet_version()).set("settings", settings_as_json);
  return provenance;
}

}  // namespace tercet
