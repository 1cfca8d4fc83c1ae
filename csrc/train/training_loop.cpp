#include "train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "device/product_algorithms.h"
#include "store/hdf5_file.h"
#include "train/progress.h"

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

class Loop {
 public:
  Loop(RunFolder& folder, const CommonSettings& settings, int64_t total_steps, const StepHooks& hooks)
      : folder_(folder), settings_(settings), total_steps_(total_steps), hooks_(hooks), progress_(total_steps) {}

  LoopResult run() {
    LoopResult result;
    result.steps_done = resume();
    if (result.steps_done == 0) evaluate(0);
    while (result.steps_done < total_steps_) {
      const int64_t step = ++result.steps_done;
      train(step);
      const bool last = step == total_steps_;
      if (last || (settings_.eval_every > 0 && step % settings_.eval_every == 0)) evaluate(step);
      result.signal = stop_signal();
      const bool due = settings_.save_every > 0 && step % settings_.save_every == 0;
      if (last || due || result.signal != 0) save(step);
      if (result.signal != 0 && !last) return stopped(result);
    }
    progress_.finish();
    result.signal = 0;
    return result;
  }

 private:
  int64_t resume() {
    if (!settings_.resume) return 0;
    const std::string path = latest_checkpoint(folder_);
    if (path.empty()) {
      restart_logs();
      return 0;
    }
    const Hdf5Reader file(path);
    const Json state = parse_json(file.text("state"), path);
    const int64_t step = state.at("step").as_int();
    if (step > total_steps_)
      fail_input(fmt::format("the run has done {} steps, more than the {} asked for", step, total_steps_),
                 folder_.path(), "raise --steps or --epochs");
    restore_products(state, path);
    hooks_.load(file, state);
    folder_.truncate_logs(state.at("logs"));
    log::info("resumed from {} (step {} of {})", path, step, total_steps_);
    return step;
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
    Json empty = Json::object();
    for (const auto& [name, position] : folder_.log_positions().as_object()) empty.set(name, 0);
    folder_.truncate_logs(empty);
    log::warn("{} has no checkpoint yet; the run begins again", folder_.path());
  }

  void train(int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    const Json metrics = hooks_.train(step);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    write_metrics(step, metrics);
    Json timing = Json::object();
    timing.set("step", step).set("time/step", seconds);
    folder_.timings(timing);
    progress_.step(step, hooks_.summary(metrics), settings_.log_every);
  }

  void evaluate(int64_t step) {
    if (!hooks_.evaluate) return;
    const Json metrics = hooks_.evaluate(step);
    write_metrics(step, metrics);
    std::string text;
    for (const auto& [name, value] : metrics.as_object()) {
      if (!text.empty()) text += "  ";
      text += value.is_number() && !value.is_integer() ? fmt::format("{} {:.4g}", name, value.as_double())
                                                       : fmt::format("{} {}", name, value.dump());
    }
    progress_.line(fmt::format("step {}: {}", step, text));
  }

  void write_metrics(int64_t step, const Json& metrics) {
    Json line = Json::object();
    line.set("step", step);
    for (const auto& [name, value] : metrics.as_object()) line.set(name, value);
    folder_.metrics(line);
  }

  void save(int64_t step) {
    fs::create_directories(folder_.file("checkpoints"));
    const std::string path = checkpoint_path(folder_, step);
    Hdf5Writer file(path, hooks_.checkpoint_bytes() + (1 << 20));
    Json state = Json::object();
    state.set("step", step);
    hooks_.save(file, state);
    keep_products(state);
    state.set("logs", folder_.log_positions());
    file.set_text("state", state.dump(2));
    file.finish();
    const std::vector<std::string> all = checkpoints(folder_);
    const size_t keep = static_cast<size_t>(std::max<int64_t>(settings_.keep, 1));
    for (size_t i = 0; i + keep < all.size(); ++i) fs::remove(all[i]);
  }

  LoopResult stopped(const LoopResult& result) {
    progress_.finish();
    log::info("stopped by signal {} after step {} of {}; everything is saved", result.signal, result.steps_done,
              total_steps_);
    return result;
  }

  RunFolder& folder_;
  const CommonSettings& settings_;
  int64_t total_steps_;
  const StepHooks& hooks_;
  Progress progress_;
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

LoopResult run_training_loop(RunFolder& folder, const CommonSettings& settings, int64_t total_steps,
                             const StepHooks& hooks) {
  install_signal_handlers();
  return Loop(folder, settings, total_steps, hooks).run();
}

}  // namespace tercet
