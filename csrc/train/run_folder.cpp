#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/temporary_path.h"
#include "train/tensorboard.h"
#include "train/toml.h"
#include "train/version.h"

namespace tercet {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "config.toml";
constexpr const char* kLock = ".lock";
constexpr const char* kReport = "report.html";
constexpr std::array kLogs = {"metrics.jsonl", "timings.jsonl", "samples.jsonl"};
constexpr const char* kEvents = "tensorboard/events.out.tfevents.tercet";

// What a run writes, and all that --overwrite deletes.
constexpr std::array kRunFiles = {"config.toml",   "model.h5",      "best.h5",       "critic.h5",   "ema.h5",
                                  "metrics.jsonl", "timings.jsonl", "samples.jsonl", "report.html", "products.json",
                                  "inputs",        "checkpoints",   "logs",          "tensorboard"};

bool is_run_file(const std::string& name) {
  return name == kLock || std::ranges::find(kRunFiles, name) != kRunFiles.end() || is_temporary_name(name);
}

[[noreturn]] void fail_no_run(const std::string& folder) {
  fail_input("the folder holds no run to resume", folder, "leave --resume out to start one");
}

// The outermost folder on the way to `path` that does not exist; empty when it exists.
fs::path outermost_missing(const fs::path& path) {
  fs::path missing;
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder); folder = folder.parent_path()) missing = folder;
  return missing;
}

void create_output_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_input("cannot create the run folder: " + error.message(), path, "give another --out");
}

void require_no_strange_files(const std::string& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (!is_run_file(entry.path().filename().string()))
      fail_input(fmt::format("the folder holds {} but no run", entry.path().filename().string()), folder,
                 "give an empty folder or a new one");
}

void delete_run(const std::string& folder) {
  // config.toml goes last, so that an interrupted deletion still leaves a run.
  for (auto name = kRunFiles.rbegin(); name != kRunFiles.rend(); ++name) {
    std::error_code error;
    fs::remove_all(fs::path(folder) / *name, error);
    if (error) fail_run("cannot delete the old run: " + error.message(), folder + "/" + *name, "check its permissions");
  }
}

std::string config_text(const RunRecord& record) {
  std::string text = "# The settings of this run. `--config` with this file repeats it in another folder.\n";
  for (const auto& [name, value] : record.settings.as_object()) text += toml_line(name, value);
  text += "\n" + toml_table("run") + toml_line("step", record.step) + toml_line("version", record.version);
  text += "\n" + toml_table("inputs");
  for (const auto& [name, hash] : record.input_hashes.as_object()) text += toml_line(name, hash);
  return text;
}

void check_resumed(const RunRecord& before, const RunRecord& now, const std::string& folder) {
  for (const std::string& name : differing(before.settings, now.settings))
    if (!is_length(name) && !is_cadence(name))
      fail_input("a resumed run keeps its settings: --" + was_and_is(name, before.settings, now.settings), folder,
                 "leave the flag out, or start another run");
  for (const std::string& name : differing(before.input_hashes, now.input_hashes))
    fail_input(
        "an input of the run has changed: the hash of " + was_and_is(name, before.input_hashes, now.input_hashes),
        folder, "restore the file, or start another run");
}

}  // namespace

OutputFolder::OutputFolder(const std::string& path) : path_(path), first_created_(outermost_missing(path).string()) {
  create_output_folder(path);
  lock_created_ = !fs::exists(path + "/" + kLock);
  lock();
}

void OutputFolder::lock() {
  const std::string path = path_ + "/" + kLock;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_errno("cannot create the run's lock", path);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  errno = error;
  if (error == EWOULDBLOCK)
    fail_input("the run folder is in use by another process", path_, "wait for it or use another --out");
  fail_errno("cannot lock the run folder", path);
}

OutputFolder::~OutputFolder() {
  if (!kept_) undo();
  ::close(fd_);
}

void OutputFolder::undo() const {
  std::error_code ignored;
  if (lock_created_) fs::remove(fs::path(path_) / kLock, ignored);
  if (first_created_.empty()) return;
  for (fs::path folder = path_; fs::remove(folder, ignored) && folder != first_created_;) folder = folder.parent_path();
}

std::vector<std::string> differing(const Json& before, const Json& now) {
  std::vector<std::string> names;
  for (const auto& [name, value] : before.as_object())
    if (const Json* other = now.find(name); other == nullptr || *other != value) names.push_back(name);
  for (const auto& [name, value] : now.as_object())
    if (before.find(name) == nullptr) names.push_back(name);
  return names;
}

std::string was_and_is(const std::string& name, const Json& before, const Json& now) {
  const auto text = [&](const Json* value) { return value == nullptr ? "nothing" : value->dump(); };
  return fmt::format("{} was {} and is {}", name, text(before.find(name)), text(now.find(name)));
}

bool is_length(const std::string& setting) { return setting == "steps" || setting == "epochs"; }

bool is_cadence(const std::string& setting) {
  static const std::set<std::string> names = {"eval-every", "save-every",  "keep",
                                              "log-every",  "tensorboard", "threads"};
  return names.contains(setting);
}

bool holds_run(const std::string& folder) { return fs::exists(folder + "/" + kConfig); }

bool holds_finished_run(const std::string& folder) {
  return holds_run(folder) && fs::exists(folder + "/" + kReport) && fs::exists(folder + "/model.h5");
}

bool is_run_record_table(const std::string& table) { return table == "run" || table == "inputs"; }

RunRecord read_run_record(const std::string& folder) {
  const std::string path = folder + "/" + kConfig;
  if (!holds_run(folder)) fail_no_run(folder);
  RunRecord record;
  for (const TomlEntry& entry : parse_toml(read_file(path), path)) {
    if (entry.table == "inputs")
      record.input_hashes.set(entry.key, entry.value);
    else if (entry.table.empty())
      record.settings.set(entry.key, entry.value);
    else if (entry.table == "run" && entry.key == "step")
      record.step = entry.value.as_string();
    else if (entry.table == "run" && entry.key == "version")
      record.version = entry.value.as_string();
  }
  return record;
}

struct RunFolder::State {
  // A log that grows by whole lines or records, opened at the first one.
  struct Log {
    std::string path;
    std::FILE* file = nullptr;

    void open() {
      if (file == nullptr && (file = std::fopen(path.c_str(), "ae")) == nullptr)
        fail_errno("cannot open the log", path);
    }
    void write(const Json& line) { write(line.dump() + "\n"); }
    void write(const std::string& text) {
      open();
      if (std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0)
        fail_errno("cannot write to the log", path);
    }
    int64_t size() {
      open();
      return static_cast<int64_t>(fs::file_size(path));
    }
    int64_t sync_and_size() {
      open();
      if (::fsync(::fileno(file)) != 0) fail_errno("cannot flush the log to disk", path);
      return size();
    }
    void require_size(int64_t size) const {
      std::error_code missing;
      const uintmax_t present = fs::file_size(path, missing);
      if (missing ? size > 0 : present < static_cast<uintmax_t>(size))
        fail_input(fmt::format("the log has fewer than the {} bytes that the checkpoint knows", size), path,
                   "restore it; lines of the run are missing");
    }
    void truncate(int64_t size) {
      require_size(size);
      open();
      if (::ftruncate(::fileno(file), size) != 0) fail_errno("cannot cut the log back", path);
    }
  };

  RunFolderOptions options;
  std::optional<OutputFolder> folder;
  std::array<Log, kLogs.size()> logs;
  Log events;  // without a path: not asked for
  bool begun = false;

  Log& log(const char* name) {
    const auto found = std::ranges::find_if(kLogs, [&](const char* known) { return std::string_view(known) == name; });
    return logs.at(static_cast<size_t>(found - kLogs.begin()));
  }

  void write_event(const Json& scalars) {
    if (events.path.empty()) return;
    if (events.size() == 0) events.write(tensorboard_header(wall_time()));
    events.write(tensorboard_record(wall_time(), scalars.at("step").as_int(), scalars));
  }

  static double wall_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  // Deletes the old run under --overwrite, what says that it is finished under --resume, and creates what every run
  // has.
  void begin() {
    if (begun) return;
    begun = true;
    folder->keep();
    const std::string& path = options.path;
    if (options.resume)
      fs::remove(path + "/" + kReport);
    else
      delete_run(path);
    for (const char* name : {"inputs", "checkpoints", "logs"}) create_output_folder(path + "/" + name);
    if (options.tensorboard) create_output_folder(path + "/tensorboard");
    log::open_file(path + "/logs/rank-000.log");
  }

  ~State() {
    for (Log& log : logs)
      if (log.file != nullptr) std::fclose(log.file);
    if (events.file != nullptr) std::fclose(events.file);
  }
};

RunFolder::RunFolder(const RunFolderOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
  std::string& path = state_->options.path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (options.resume && !holds_run(path)) fail_no_run(path);
  state_->folder.emplace(path);
  if (!holds_run(path)) require_no_strange_files(path);
  if (holds_run(path) && !options.resume && !options.overwrite)
    fail_input("the folder holds a run already", path, "give --resume, --overwrite or another --out");
  if (options.resume) {
    const std::string step = read_run_record(path).step;
    if (step != options.step)
      fail_input(fmt::format("the folder holds a run of {}", step), path, "resume it with that command");
  }
  for (size_t i = 0; i < kLogs.size(); ++i) state_->logs[i].path = file(kLogs[i]);
  if (options.tensorboard) state_->events.path = file(kEvents);
}

RunFolder::~RunFolder() { log::close_file(); }

const std::string& RunFolder::path() const { return state_->options.path; }

std::string RunFolder::file(const std::string& name) const { return path() + "/" + name; }

void RunFolder::check_config(const Json& settings, const Json& input_hashes) const {
  const RunRecord now{state_->options.step, tercet_version(), settings, input_hashes};
  if (state_->options.resume) check_resumed(read_run_record(path()), now, path());
}

void RunFolder::write_or_check_config(const Json& settings, const Json& input_hashes) {
  check_config(settings, input_hashes);
  state_->begin();
  const RunRecord now{state_->options.step, tercet_version(), settings, input_hashes};
  write_file_atomically(file(kConfig), config_text(now));
}

std::string RunFolder::keep_input(const std::string& source, const std::string& name) {
  const std::string target = file("inputs/" + name);
  if (fs::exists(target)) return target;
  std::error_code error;
  fs::create_hard_link(fs::canonical(source, error), target, error);
  if (!error) return target;
  TemporaryPath temporary(target, PathKind::file);
  fs::copy_file(source, temporary.path(), fs::copy_options::overwrite_existing, error);
  if (error) fail_run("cannot keep a copy of the input: " + error.message(), source, "free space on the disk of --out");
  temporary.publish();
  return target;
}

void RunFolder::metrics(const Json& line) {
  state_->log("metrics.jsonl").write(line);
  state_->write_event(line);
}

void RunFolder::timings(const Json& line) {
  state_->log("timings.jsonl").write(line);
  state_->write_event(line);
}

void RunFolder::sample(const Json& line) { state_->log("samples.jsonl").write(line); }

Json RunFolder::log_positions() {
  Json positions = Json::object();
  for (const char* name : kLogs) positions.set(name, state_->log(name).sync_and_size());
  if (!state_->events.path.empty()) positions.set(kEvents, state_->events.sync_and_size());
  return positions;
}

void RunFolder::require_logs(const Json& positions) const {
  for (const char* name : kLogs) state_->log(name).require_size(positions.at(name).as_int());
  if (const Json* events = positions.find(kEvents); events != nullptr && !state_->events.path.empty())
    state_->events.require_size(events->as_int());
}

void RunFolder::truncate_logs(const Json& positions) {
  for (const char* name : kLogs) state_->log(name).truncate(positions.at(name).as_int());
  if (state_->events.path.empty()) return;
  const Json* events = positions.find(kEvents);
  state_->events.truncate(events == nullptr ? 0 : events->as_int());
}

}  // namespace tercet
