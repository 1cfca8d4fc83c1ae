// Signals to the program that ships: what is saved, the exit code, and the bytes of the resumed run. tests/stops has
// every place where a run can stop.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "app/program.h"
#include "train/run_files.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

// The program as a child process, its messages in a file.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& messages) {
    arguments.insert(arguments.begin(), TERCET_BINARY_DIR "/tercet");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    // The test's own handlers must not meet a signal to the child.
    sigset_t all, before;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, &before);
    pid_ = ::fork();
    if (pid_ != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    for (const int number : {SIGINT, SIGTERM, SIGUSR1}) ::signal(number, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    const int file = ::open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(file, STDERR_FILENO);
    ::execv(words[0], words.data());
    ::_exit(99);
  }
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { ::kill(pid_, number); }

  // Waits until `holds`, which must happen.
  void wait_until(const std::function<bool()>& holds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // The exit code, as a shell gives it: 128 + the signal that killed the process.
  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

bool has_bytes(const std::string& path) {
  std::error_code missing;
  const auto size = fs::file_size(path, missing);
  return !missing && size > 0;
}

bool any_file(const std::string& folder, const std::string& part) {
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing))
    if (contains(entry.path().filename().string(), part)) return true;
  return false;
}

// Small models and data for runs of the three steps, which all take place in one folder.
struct Trainings {
  Trainings() {
    model = make_model(folder);
    std::string lines;
    for (const char* word : {"tea", "milk", "salt", "rice", "figs", "corn", "dill", "peas"})
      lines += std::string(R"({"prompt": "what is )") + word + R"(?", "chosen": "a )" + word +
               R"(", "rejected": "no"})" + "\n";
    data = folder.file("pairs.jsonl", lines);
    reward = folder.path + "/reward.h5";
    auto arguments = training("reward", "4");
    REQUIRE(run_program(arguments).exit_code == 0);
    fs::rename(out + "/model.h5", reward);
    fs::remove_all(out);
  }

  std::vector<std::string> training(const std::string& step, const std::string& steps) const {
    std::vector<std::string> arguments = {step, "--data",   data,   "--eval-data",  data,       "--out",
                                          out,  "--device", "cpu",  "--schedule",   "constant", "--warmup",
                                          "0",  "--lr",     "1e-3", "--save-every", "4",        "--eval-every",
                                          "6",  "--steps",  steps};
    if (step == "ppo")
      arguments.insert(arguments.end(), {"--actor", model, "--reward-model", reward, "--rollouts", "4", "--ppo-epochs",
                                         "2", "--minibatches", "2", "--max-prompt-tokens", "48", "--max-new-tokens",
                                         "12", "--ema-decay", "0.9"});
    else
      arguments.insert(arguments.end(), {"--model", model, "--batch-size", "4", "--max-length", "64"});
    return arguments;
  }

  bool has_trained() const {
    return has_bytes(out + "/metrics.jsonl") && contains(read_file(out + "/metrics.jsonl"), "\"step\":1,");
  }

  int64_t steps_begun() const {
    const std::vector<Json> lines =
        json_lines(has_bytes(out + "/metrics.jsonl") ? read_file(out + "/metrics.jsonl") : "");
    return lines.empty() ? 0 : lines.back().at("step").as_int();
  }

  std::vector<std::string> resumed(const std::string& step, const std::string& steps) const {
    if (fs::exists(out + "/config.toml")) return {step, "--resume", "--out", out, "--steps", steps};
    return training(step, steps);
  }

  // Finishes a run that was stopped, a few steps after what it had begun, and compares it with one that never was.
  void check_resumes(const std::string& step) const {
    const std::string steps = std::to_string(steps_begun() + 3);
    const ProgramResult after = run_program(resumed(step, steps));
    REQUIRE_MESSAGE(after.exit_code == 0, after.err);
    CHECK_FALSE(any_file(out, ".partial-"));
    CHECK_FALSE(any_file(out + "/checkpoints", ".partial-"));
    auto stopped = testing::run_results(out);
    fs::remove_all(out);
    REQUIRE(run_program(training(step, steps)).exit_code == 0);
    auto undisturbed = testing::run_results(out);
    // Its provenance has the number of steps that was asked for when it was written.
    stopped.erase("best.h5");
    undisturbed.erase("best.h5");
    CHECK(stopped == undisturbed);
    fs::remove_all(out);
  }

  std::string messages() const { return folder.path + "/messages"; }

  TemporaryFolder folder;
  std::string model, data, reward;
  std::string out = folder.path + "/run";
};

// So many that a run does not end by itself.
const std::string kForever = "100000000";

struct Moment {
  std::string name;
  std::function<bool(const Trainings&)> has_come;
};

const std::vector<Moment>& moments() {
  static const std::vector<Moment> all = {
      {"loading", [](const Trainings& t) { return fs::exists(t.out); }},
      {"evaluating before the first step", [](const Trainings& t) { return fs::exists(t.out + "/config.toml"); }},
      {"training", [](const Trainings& t) { return t.has_trained(); }},
      {"writing a checkpoint", [](const Trainings& t) { return any_file(t.out + "/checkpoints", ".partial-"); }},
  };
  return all;
}

void check_stop(const Trainings& t, const std::string& step, const Moment& moment) {
  CAPTURE(step);
  CAPTURE(moment.name);
  Child child(t.training(step, kForever), t.messages());
  child.wait_until([&] { return moment.has_come(t); });
  child.signal(SIGINT);
  CHECK(child.exit_code() == 130);
  const std::string said = read_file(t.messages());
  CHECK_MESSAGE((contains(said, "to go on: tercet " + step + " --resume --out " + t.out) ||
                 (!fs::exists(t.out) && contains(said, "the same command starts it"))),
                said);
  t.check_resumes(step);
}

TEST_CASE(
    "SIGINT in a phase of a step saves and says how to go on; the resumed run has the bytes of an undisturbed one") {
  const Trainings t;
  check_stop(t, "sft", moments()[0]);
  check_stop(t, "reward", moments()[1]);
  check_stop(t, "ppo", moments()[2]);
  check_stop(t, "sft", moments()[3]);
}

TEST_CASE("long: SIGINT in every phase of every step") {
  const Trainings t;
  for (const std::string step : {"sft", "reward", "ppo"})
    for (const Moment& moment : moments()) check_stop(t, step, moment);
}

TEST_CASE("SIGTERM ends with 143 and SIGUSR1 with 0, saved like SIGINT") {
  const Trainings t;
  for (const auto& [signal, code] : {std::pair{SIGTERM, 143}, {SIGUSR1, 0}}) {
    CAPTURE(signal);
    Child child(t.training("sft", kForever), t.messages());
    child.wait_until([&] { return t.has_trained(); });
    child.signal(signal);
    CHECK(child.exit_code() == code);
    CHECK(contains(read_file(t.messages()), "everything is saved"));
    CHECK_FALSE(fs::exists(t.out + "/model.h5"));
    t.check_resumes("sft");
  }
}

TEST_CASE("a second signal exits at once and leaves the last checkpoint good") {
  const Trainings t;
  for (const std::string step : {"sft", "ppo"}) {
    CAPTURE(step);
    Child child(t.training(step, kForever), t.messages());
    child.wait_until([&] { return any_file(t.out + "/checkpoints", "00000004.h5"); });
    child.signal(SIGINT);
    child.signal(SIGTERM);
    const int code = child.exit_code();
    // The two may come in either order, and the first alone may have ended the run.
    CHECK((code == 143 || code == 130));
    t.check_resumes(step);
  }
}

TEST_CASE("a signal before anything is done leaves no folder") {
  const Trainings t;
  Child child(t.training("sft", kForever), t.messages());
  child.signal(SIGINT);
  CHECK(child.exit_code() == 130);
  if (!fs::exists(t.out + "/config.toml")) CHECK_FALSE(fs::exists(t.out));
}

TEST_CASE("long: signals at random times, two of them now and then, in runs with an end") {
  const Trainings t;
  std::mt19937 random(7);  // NOLINT: the times differ from machine to machine anyway
  for (const std::string step : {"sft", "reward", "ppo"}) {
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(run_program(t.training(step, "30")).exit_code == 0);
    const auto length = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    const auto straight = testing::run_results(t.out);
    for (int trial = 0; trial < 40; ++trial) {
      fs::remove_all(t.out);
      const auto delay = std::chrono::microseconds(random() % static_cast<uint64_t>(length.count() * 11 / 10));
      CAPTURE(step);
      CAPTURE(trial);
      CAPTURE(delay.count());
      Child child(t.training(step, "30"), t.messages());
      std::this_thread::sleep_for(delay);
      child.signal(SIGINT);
      if (trial % 3 == 0) child.signal(SIGINT);
      const int code = child.exit_code();
      CHECK((code == 130 || code == 0));
      const ProgramResult after = run_program(t.resumed(step, "30"));
      REQUIRE_MESSAGE(after.exit_code == 0, after.err);
      CHECK(testing::run_results(t.out) == straight);
    }
    fs::remove_all(t.out);
  }
}

}  // namespace
}  // namespace tercet
