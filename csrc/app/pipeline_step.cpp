#include "app/pipeline_step.h"

#include <filesystem>

#include "base/file.h"
#include "data/dataset.h"
#include "train/version.h"

namespace tercet {
namespace fs = std::filesystem;
namespace {

std::string recorded(const RecordedNames& names, const std::string& path) {
  const auto found = names.find(path);
  return found == names.end() ? path : found->second;
}

StepStatus compared(const RunRecord& before, const RunRecord& now, bool finished) {
  StepStatus status{finished ? StepState::finished : StepState::begun, {}};
  const auto change = [&](std::string text, StepState state) {
    status.changes.push_back(std::move(text));
    status.state = state;
  };
  for (const std::string& name : differing(before.settings, now.settings)) {
    if (is_cadence(name)) continue;
    const bool resumable = is_length(name) && status.state == StepState::begun;
    change("--" + was_and_is(name, before.settings, now.settings), resumable ? StepState::begun : StepState::changed);
  }
  for (const auto& [name, hash] : now.input_hashes.as_object())
    if (const Json* known = before.input_hashes.find(name); known != nullptr && *known != hash)
      change(name + " has changed", StepState::changed);
  return status;
}

}  // namespace

std::vector<std::string> files_read(const Invocation& invocation) {
  std::vector<std::string> files;
  for (const Flag& flag : flags()) {
    if (!takes(*invocation.command, flag) || !flag.is_path() || flag.name == "out") continue;
    const Json value = get_flag(invocation.settings, flag);
    for (const Json& item : value.is_array() ? value.as_array() : Json::Array{value})
      if (const std::string& text = item.as_string(); !text.empty())
        files.push_back(flag.value.starts_with("DATA") ? parse_data_path(text).path : text);
  }
  return files;
}

RunRecord record_of(const Invocation& invocation, const RecordedNames& names) {
  RunRecord record{invocation.command->name, tercet_version(), invocation.settings_as_json, Json::object()};
  for (const auto& [name, value] : invocation.settings_as_json.as_object())
    if (value.is_string()) record.settings.set(name, recorded(names, value.as_string()));
  for (const std::string& path : files_read(invocation))
    record.input_hashes.set(recorded(names, path), hash_file(path));
  return record;
}

StepStatus step_status(const std::string& folder, const RunRecord& now) {
  if (!fs::exists(folder + "/config.toml")) return {};
  return compared(read_run_record(folder), now, holds_finished_run(folder));
}

StepStatus evaluation_status(const std::string& path, const RunRecord& now) {
  if (!fs::exists(path)) return {};
  const Json figures = parse_json(read_file(path), path);
  return compared({"eval", "", figures.at("settings"), figures.at("inputs")}, now, true);
}

Json with_record(Json figures, const RunRecord& record) {
  return figures.set("settings", record.settings).set("inputs", record.input_hashes);
}

}  // namespace tercet
