#include "train/training_loop.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "base/temporary_path.h"
#include "device/product_algorithms.h"
#include "store/hdf5_file.h"
#include "train/progress.h"
#include "train/signals.h"

namespace tercet {
namespace {

namespace fs = std::filesystem;

std::string checkpoint_path(const RunFolder& folder, int64_t step) {
  return folder.file(fmt::format("checkpoints/step-{:08}.h5", step));
}

// Names of checkpoints, oldest first.
std::vector<std::string> checkpoints(const RunFolder& folder) {
  std::vector<std::string> paths;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder.file("checkpoints"), missing)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".h5")) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The most bytes of memory that this process has held so far; of the host, where another device computes.
int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

class Loop {
 public:
  Loop(RunFolder& folder, const CommonSettings& settings, int64_t total_steps, const StepHooks& hooks)
      : folder_(folder), settings_(settings), total_steps_(total_steps), hooks_(hooks), progress_(total_steps) {}

  void run() {
    resume();
    try {
      run_steps();
    } catch (const Interrupted&) {
      stop();
      throw;
    }
    progress_.finish();
  }

 private:
  // Where the run is: after a step, before or after the evaluation that follows it.
  struct Position {
    int64_t step = 0;
    bool evaluation_due = false;
    bool operator==(const Position&) const = default;
  };

  void run_steps() {
    while (true) {
      throw_if_stop_requested();
      if (at_.evaluation_due) evaluate();
      const bool last = at_.step == total_steps_;
      if ((last || is_due(settings_.save_every)) && at_ != saved_) save();
      if (last) return;
      throw_if_stop_requested();
      train();
    }
  }

  // Whether something that is done every `interval` steps follows this one; 0 is never.
  bool is_due(int64_t interval) const { return interval > 0 && at_.step > 0 && at_.step % interval == 0; }

  // The run's lock is held: nobody writes what a process that was killed left unfinished.
  void remove_unfinished() const {
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(folder_.file("checkpoints"), missing))
      if (is_temporary_name(entry.path().filename().string())) fs::remove(entry.path());
  }

  void resume() {
    remove_unfinished();
    at_ = {0, static_cast<bool>(hooks_.evaluate)};
    const std::string path = settings_.resume ? latest_checkpoint(folder_) : "";
    if (path.empty()) {
      tokens_seen_ = 0;
      if (settings_.resume) restart_logs();
      return;
    }
    const Hdf5Reader file(path);
    const Json state = parse_json(file.text("state"), path);
    const Json* evaluation_due = state.find("evaluation_due");
    at_ = saved_ = {state.at("step").as_int(), evaluation_due != nullptr && evaluation_due->as_bool()};
    restore_products(state, path);
    hooks_.load(file, state);
    folder_.truncate_logs(state.at("logs"));
    log::info("resumed from {} (step {} of {})", path, at_.step, total_steps_);
  }

  void restore_products(const Json& state, const std::string& path) {
    if (hooks_.products == nullptr) return;
    const Json* saved = state.find("product_algorithms");
    hooks_.products->restore(saved == nullptr ? Json() : *saved, path,
                             [](const std::string& message) { log::warn("{}", message); });
  }

  void keep_products(Json& state) {
    if (hooks_.products == nullptr) return;
    const Json algorithms = hooks_.products->to_json();
    write_file_atomically(folder_.file("products.json"), algorithms.dump(2) + "\n");
    state.set("product_algorithms", algorithms);
  }

  // A run that was stopped before its first checkpoint begins again, and so do its logs.
  void restart_logs() {
    const Json positions = folder_.log_positions();
    Json empty = Json::object();
    for (const auto& [name, position] : positions.as_object()) empty.set(name, 0);
    folder_.truncate_logs(empty);
    log::warn("{} has no checkpoint yet; the run begins again", folder_.path());
  }

  void train() {
    const int64_t step = at_.step + 1;
    const Clock clock;
    const double flops = hooks_.flops();
    const Json metrics = hooks_.train(step);
    write_timings(step, clock.seconds(), hooks_.flops() - flops, metrics);
    write_metrics(step, metrics);
    progress_.step(step, hooks_.summary(metrics), settings_.log_every);
    at_.step = step;
    at_.evaluation_due = hooks_.evaluate && (step == total_steps_ || is_due(settings_.eval_every));
  }

  void evaluate() {
    const Clock clock;
    const Json metrics = hooks_.evaluate(at_.step);
    write_time("time/eval", clock);
    write_metrics(at_.step, metrics);
    at_.evaluation_due = false;
    std::string text;
    for (const auto& [name, value] : metrics.as_object()) {
      if (!text.empty()) text += "  ";
      text += value.is_number() && !value.is_integer() ? fmt::format("{} {:.4g}", name, value.as_double())
                                                       : fmt::format("{} {}", name, value.dump());
    }
    progress_.line(fmt::format("step {}: {}", at_.step, text));
  }

  // The rate needs the tokens before this step, which the first step after resuming does not know.
  void write_timings(int64_t step, double seconds, double flops, const Json& metrics) {
    Json line = Json::object();
    line.set("step", step).set("time/step", seconds).set("flop_per_s", flops / seconds);
    if (hooks_.peak_flops > 0) line.set("mfu", flops / seconds / hooks_.peak_flops);
    if (const Json* tokens = metrics.find("tokens_seen")) {
      if (tokens_seen_) line.set("tokens_per_s", static_cast<double>(tokens->as_int() - *tokens_seen_) / seconds);
      tokens_seen_ = tokens->as_int();
    }
    folder_.timings(line.set("mem_peak", peak_memory()));
  }

  void write_time(const char* name, const Clock& clock) {
    Json line = Json::object();
    folder_.timings(line.set("step", at_.step).set(name, clock.seconds()));
  }

  void write_metrics(int64_t step, const Json& metrics) {
    Json line = Json::object();
    line.set("step", step);
    for (const auto& [name, value] : metrics.as_object()) line.set(name, value);
    folder_.metrics(line);
  }

  void save() {
    const Clock clock;
    fs::create_directories(folder_.file("checkpoints"));
    const std::string path = checkpoint_path(folder_, at_.step);
    Hdf5Writer file(path, hooks_.checkpoint_bytes() + (1 << 20));
    Json state = Json::object();
    state.set("step", at_.step).set("evaluation_due", at_.evaluation_due);
    hooks_.save(file, state);
    keep_products(state);
    state.set("logs", folder_.log_positions());
    file.set_text("state", state.dump(2));
    file.finish();
    write_time("time/ckpt", clock);
    saved_ = at_;
    const std::vector<std::string> all = checkpoints(folder_);
    const size_t keep = static_cast<size_t>(std::max<int64_t>(settings_.keep, 1));
    for (size_t i = 0; i + keep < all.size(); ++i) fs::remove(all[i]);
  }

  // A run that has done no step begins again when it is resumed.
  void stop() {
    progress_.finish();
    if (at_.step > 0 && at_ != saved_) save();
    log::info("stopped after step {} of {}{}", at_.step, total_steps_, at_.step > 0 ? "; everything is saved" : "");
  }

  RunFolder& folder_;
  const CommonSettings& settings_;
  int64_t total_steps_;
  const StepHooks& hooks_;
  Progress progress_;
  Position at_, saved_;  // saved_: of the newest checkpoint
  std::optional<int64_t> tokens_seen_;
};

}  // namespace

std::string latest_checkpoint(const RunFolder& folder) {
  std::vector<std::string> all = checkpoints(folder);
  while (!all.empty()) {
    try {
      const Hdf5Reader file(all.back());
      file.text("state");
      return all.back();
    } catch (const Error& error) {
      log::warn("{}; trying the checkpoint before it", error.what());
      all.pop_back();
    }
  }
  return "";
}

void require_resumable(const RunFolder& folder, const CommonSettings& settings, int64_t total_steps) {
  const size_t count = settings.resume ? checkpoints(folder).size() : 0;
  if (count == 0) return;
  const std::string path = latest_checkpoint(folder);
  if (path.empty())
    fail_input(fmt::format("none of the run's {} checkpoints can be read", count), folder.path(),
               "restore one, or give --overwrite to start the run again");
  const Json state = parse_json(Hdf5Reader(path).text("state"), path);
  const int64_t step = state.at("step").as_int();
  if (step > total_steps)
    fail_input(fmt::format("the run has done {} steps, more than the {} asked for", step, total_steps), folder.path(),
               "raise --steps or --epochs");
  folder.require_logs(state.at("logs"));
}

void run_training_loop(RunFolder& folder, const CommonSettings& settings, int64_t total_steps, const StepHooks& hooks) {
  Loop(folder, settings, total_steps, hooks).run();
}

}  // namespace tercet
