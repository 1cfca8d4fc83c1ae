// All three steps and a comparison of the models, from one file.
#include <algorithm>
#include <filesystem>

#include "app/pipeline_file.h"
#include "app/pipeline_step.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "train/signals.h"

namespace tercet {
namespace fs = std::filesystem;
namespace {

// The copy of the pipeline's file, by which its folder is known.
constexpr const char* kMark = "pipeline.toml";

// The folder of one pipeline, held by this process. One in which no step has begun goes as it came.
class PipelineFolder {
 public:
  // Throws Error(Fault::input) when the folder holds anything but a pipeline, or is in use.
  PipelineFolder(const std::string& path, const std::string& file) : path_(path), folder_(path) {
    marked_before_ = fs::exists(path + "/" + kMark);
    if (!marked_before_) require_empty();
    write_file_atomically(path + "/" + kMark, file);
  }

  ~PipelineFolder() {
    const bool begun = fs::exists(path_ + "/sft");
    std::error_code ignored;
    if (marked_before_ || begun)
      folder_.keep();
    else
      fs::remove(path_ + "/" + kMark, ignored);
  }

  PipelineFolder(const PipelineFolder&) = delete;
  PipelineFolder& operator=(const PipelineFolder&) = delete;

 private:
  void require_empty() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (name != ".lock" && !name.starts_with(kMark))
        fail_input(fmt::format("the folder holds {} but no pipeline", name), path_,
                   "give an empty folder or a new one");
    }
  }

  std::string path_;
  OutputFolder folder_;
  bool marked_before_ = false;
};

std::string joined(const std::vector<std::string>& texts, const char* between) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : between) + text;
  return all;
}

void print_comparison(const Json& figures) {
  fmt::print("{:10} {:>10} {:>10} {:>10}\n", "", "score", "length", "EOS rate");
  const auto print_row = [&](const char* name, const Json& values) {
    fmt::print("{:10} {:10.3f} {:10.1f} {:10.3f}\n", name, values.at("score").as_double(),
               values.at("length").as_double(), values.at("eos_rate").as_double());
  };
  print_row("after sft", figures.at("baseline"));
  print_row("after ppo", figures.at("model"));
  const Json::Array& interval = figures.at("win_rate_interval").as_array();
  fmt::print("ppo wins {:.1f} % of {} prompts (95 % interval {:.1f} to {:.1f} %)\n",
             100 * figures.at("win_rate").as_double(), figures.at("prompts").as_int(), 100 * interval[0].as_double(),
             100 * interval[1].as_double());
}

class Pipeline {
 public:
  Pipeline(const PipelineFile& file, std::string out, std::string command)
      : file_(file),
        command_(std::move(command)),
        out_(std::move(out)),
        eval_path_(out_ + "/eval.json"),
        sft_model_(folder("sft") + "/model.h5"),
        reward_model_(folder("reward") + "/model.h5"),
        actor_(folder("ppo") + "/model.h5") {}

  // Finds what is wrong with the flags and files of a later step before the first one.
  void check() const {
    std::vector<Invocation> all = training_steps();
    if (file_.evaluates()) all.push_back(eval());
    for (const Invocation& invocation : all)
      for (const std::string& path : files_read(invocation))
        if (!is_result(path)) MappedFile{path};
  }

  // The exit code.
  int run() const {
    try {
      const std::vector<Invocation> steps = training_steps();
      const bool finished = std::ranges::all_of(steps, [&](const Invocation& step) { return train(step); });
      if (finished && file_.evaluates()) evaluate();
    } catch (const Interrupted&) {
      log::info("to go on: {}", command_);
    }
    return stop_exit_code(stop_signal());
  }

 private:
  std::string folder(const std::string& step) const { return out_ + "/" + step; }
  bool is_result(const std::string& path) const {
    return path == sft_model_ || path == reward_model_ || path == actor_;
  }

  // A reward in code leaves no reward model to train.
  std::vector<Invocation> training_steps() const {
    if (file_.reward_rule().empty()) return {sft(), reward(), ppo()};
    return {sft(), ppo()};
  }

  // What ppo and eval score responses by.
  std::string reward_flag() const {
    return file_.reward_rule().empty() ? "--reward-model=" + reward_model_ : "--reward-rule=" + file_.reward_rule();
  }

  Invocation sft() const { return file_.invocation("sft", {"--model=" + file_.sft_model(), "--out=" + folder("sft")}); }
  Invocation reward() const {
    const std::string start = file_.reward_model().empty() ? sft_model_ : file_.reward_model();
    return file_.invocation("reward", {"--model=" + start, "--out=" + folder("reward")});
  }
  Invocation ppo() const {
    return file_.invocation("ppo", {"--actor=" + sft_model_, reward_flag(), "--out=" + folder("ppo")});
  }
  Invocation eval() const {
    return file_.invocation("eval", {"--model=" + actor_, "--baseline=" + sft_model_, reward_flag()});
  }

  // Records name the pipeline's models relative to themselves, so that results do not depend on where it lies.
  RecordedNames recorded_names(const std::string& up) const {
    return {{sft_model_, up + "sft/model.h5"}, {reward_model_, up + "reward/model.h5"}, {actor_, up + "ppo/model.h5"}};
  }

  // Whether the step is finished; if not, a signal has stopped it, and it has said how to go on.
  bool train(Invocation invocation) const {
    throw_if_stop_requested();
    const std::string step = invocation.command->name;
    const RecordedNames names = recorded_names("../");
    const RunRecord now = record_of(invocation, names);
    const StepStatus status = step_status(folder(step), now);
    announce(step, folder(step), status);
    if (status.state == StepState::finished) return true;
    const auto prepare = [&](auto& settings) {
      if constexpr (std::is_base_of_v<CommonSettings, std::remove_reference_t<decltype(settings)>>) {
        (status.state == StepState::begun ? settings.resume : settings.overwrite) = true;
        settings.resume_command = command_;
        settings.recorded_names = names;
      }
    };
    std::visit(prepare, invocation.settings);
    invocation.command->run(invocation.settings, now.settings);
    return holds_finished_run(folder(step));
  }

  void evaluate() const {
    throw_if_stop_requested();
    const Invocation invocation = eval();
    const RunRecord now = record_of(invocation, recorded_names(""));
    const StepStatus status = evaluation_status(eval_path_, now);
    announce("eval", eval_path_, status);
    if (status.state != StepState::finished) {
      const Json figures = with_record(tercet::evaluate(std::get<EvalSettings>(invocation.settings)), now);
      write_file_atomically(eval_path_, figures.dump(2) + "\n");
    }
    print_comparison(parse_json(read_file(eval_path_), eval_path_));
  }

  void announce(const std::string& step, const std::string& place, const StepStatus& status) const {
    const std::string changes = joined(status.changes, ", ");
    if (status.state == StepState::absent) log::info("{}: starts", step);
    if (status.state == StepState::finished) log::info("{}: finished, skipped", step);
    if (status.state == StepState::begun)
      log::info("{}: goes on where it was{}", step, changes.empty() ? "" : "; " + changes);
    if (status.state == StepState::changed)
      log::info("{}: {}: runs again and replaces {}{}", step, changes, place, followers(step));
  }

  // What was made from the model of a step and will be made again.
  std::string followers(const std::string& step) const {
    std::vector<std::string> later;
    if (step == "sft" && file_.reward_rule().empty() && file_.reward_model().empty() && fs::exists(folder("reward")))
      later.push_back("reward");
    if (step != "ppo" && fs::exists(folder("ppo"))) later.push_back("ppo");
    if (file_.evaluates() && fs::exists(eval_path_)) later.push_back("eval");
    if (step == "eval" || later.empty()) return "";
    return fmt::format("; what is made from its model follows: {}", joined(later, ", "));
  }

  const PipelineFile& file_;
  std::string command_, out_, eval_path_, sft_model_, reward_model_, actor_;
};

std::string without_last_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

int run_rlhf(const RlhfSettings& settings) {
  install_signal_handlers();
  const PipelineFile file(settings.config);
  const std::string out = without_last_slash(settings.out);
  const Pipeline pipeline(file, out, fmt::format("tercet rlhf --config {} --out {}", settings.config, settings.out));
  pipeline.check();
  const PipelineFolder folder(out, file.text());
  return pipeline.run();
}

}  // namespace tercet
