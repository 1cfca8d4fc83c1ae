#include "train/compared_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "train/comparison.h"

namespace tercet {
namespace fs = std::filesystem;
namespace {

// Lines of an evaluation have no tokens of their own: they get those of the step before them.
LogColumns with_tokens(const std::string& folder) {
  LogColumns columns;
  Json tokens = 0;
  for_each_log_line(folder, "metrics.jsonl", [&](const Json& line) {
    Json completed = line;
    if (const Json* own = line.find("tokens_seen"))
      tokens = *own;
    else
      completed.set("tokens_seen", tokens);
    columns.add(completed);
  });
  return columns;
}

[[noreturn]] void fail_no_run(const std::string& folder) {
  std::string within;
  for (const char* step : {"sft", "reward", "ppo"})
    if (fs::exists(fs::path(folder) / step / "config.toml")) within += (within.empty() ? "" : ", ") + std::string(step);
  if (!fs::exists(folder)) fail_input("there is no such folder", folder, "give the folders of runs");
  fail_input("the folder holds no run", folder,
             within.empty() ? "give folders that sft, reward or ppo have written"
                            : fmt::format("name the run within it: {}", within));
}

// The last `count` components of a path.
std::string path_end(const fs::path& path, size_t count) {
  fs::path end;
  size_t left = static_cast<size_t>(std::distance(path.begin(), path.end()));
  for (const fs::path& component : path)
    if (left-- <= count) end /= component;
  return end.string();
}

// As few last components of each path as tell all apart.
std::vector<std::string> labels_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> labels;
  for (size_t count = 1;; ++count) {
    labels.clear();
    for (const fs::path& path : paths) labels.push_back(path_end(path, count));
    if (std::set(labels.begin(), labels.end()).size() == paths.size()) return labels;
  }
}

std::vector<fs::path> checked_paths(const std::vector<std::string>& folders) {
  if (folders.size() < 2) fail_input("there is nothing to compare with", "compare", "give two runs or more");
  if (folders.size() > kMostComparedRuns)
    fail_input(fmt::format("{} runs are too many to tell apart", folders.size()), "compare",
               fmt::format("give at most {} at once", kMostComparedRuns));
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    if (!holds_run(folder)) fail_no_run(folder);
    paths.push_back(fs::canonical(folder));
    if (std::ranges::count(paths, paths.back()) > 1) fail_input("the run is given twice", folder, "leave one out");
  }
  return paths;
}

// The file of a word of a setting, which may end in "=WEIGHT".
std::optional<InputFile> input_file(const RunRecord& record, const std::string& text) {
  for (const std::string& path : {text, text.substr(0, text.rfind('='))})
    if (const Json* hash = record.input_hashes.find(path)) return InputFile{path, hash->as_string()};
  return {};
}

}  // namespace

std::vector<ComparedRun> read_compared_runs(const std::vector<std::string>& folders) {
  const std::vector<std::string> labels = labels_of(checked_paths(folders));
  std::vector<ComparedRun> runs;
  for (size_t i = 0; i < folders.size(); ++i) {
    runs.push_back({labels[i], folders[i], read_run_record(folders[i]), {}, {}});
    const std::string& step = runs.back().record.step;
    if (step != runs.front().record.step)
      fail_input(fmt::format("{} is a run of {} and this one of {}", folders.front(), runs.front().record.step, step),
                 folders[i], "compare runs of one step");
  }
  for (ComparedRun& run : runs) {
    run.metrics = with_tokens(run.path);
    run.timings = LogColumns::read(run.path, "timings.jsonl");
  }
  return runs;
}

std::vector<InputFile> input_files(const RunRecord& record, const std::string& setting) {
  std::vector<InputFile> files;
  const Json* value = record.settings.find(setting);
  if (value == nullptr) return files;
  for (const Json& item : value->is_array() ? value->as_array() : Json::Array{*value})
    if (item.is_string())
      if (const auto file = input_file(record, item.as_string())) files.push_back(*file);
  return files;
}

}  // namespace tercet
