// A run that is asked to stop at any of the places where it looks, and then resumed, ends with the bytes of one that
// was not.
#include <doctest/doctest.h>

#include <functional>

#include "base/file.h"
#include "stops/polls.h"
#include "train/run_files.h"
#include "train/steps.h"

namespace tercet::testing {
namespace {
namespace fs = std::filesystem;

constexpr int kStopped = 130;

// A training command on small files. `run(resume)` returns its exit code.
struct Training {
  std::string out;
  std::function<int(bool resume)> run;

  // The exit code of the run, or of its next part, when a stop is asked for at poll `first` (0: never).
  int run_until(int64_t first) const {
    polls() = {.first = first};
    return run(fs::exists(out + "/config.toml"));
  }
};

template <class Settings>
void common_settings(const RunFiles& files, Settings& s) {
  s.data = {files.file("data.jsonl")};
  s.eval_data = {files.file("eval.jsonl")};
  s.prompt_template = "none";
  s.out = files.file("run");
  s.max_length = 16;
  s.steps = 5;
  s.save_every = 2;
  s.eval_every = 2;
  s.keep = 10;
  s.seed = 3;
}

template <class Settings>
Training training(int (*command)(const Settings&, const Json&), const Settings& settings) {
  return {settings.out, [command, settings](bool resume) {
            Settings now = settings;
            now.resume = resume;
            Json recorded = Json::object();
            return command(now, recorded.set("steps", settings.steps));
          }};
}

void write_data(const RunFiles& files) {
  const std::string lines =
      "{\"prompt\": \"a\", \"chosen\": \"b c\", \"rejected\": \"d\"}\n"
      "{\"prompt\": \"bb\", \"chosen\": \"x\", \"rejected\": \"yz z\"}\n"
      "{\"prompt\": \"c\", \"chosen\": \"mn\", \"rejected\": \"o\"}\n";
  write_file_atomically(files.file("data.jsonl"), lines);
  write_file_atomically(files.file("eval.jsonl"), lines);
  write_fresh_model(files.file("model.h5"), byte_model(Head::language_model), 1);
  write_fresh_model(files.file("reward.h5"), byte_model(Head::scalar), 2);
}

template <class Settings>
Settings supervised_settings(const RunFiles& files) {
  Settings s;
  common_settings(files, s);
  s.model = files.file("model.h5");
  s.batch_size = 2;
  s.lr = 1e-2;
  s.dropout = 0.1;
  s.micro_batch_tokens = 2 * s.max_length;
  return s;
}

PpoSettings ppo_settings(const RunFiles& files) {
  PpoSettings s;
  common_settings(files, s);
  s.actor = files.file("model.h5");
  s.reward_model = files.file("reward.h5");
  s.steps = 3;
  s.rollouts = 3;
  s.minibatches = 2;
  s.ppo_epochs = 2;
  s.max_prompt_tokens = 8;
  s.max_new_tokens = 4;
  s.actor_lr = s.critic_lr = 1e-3;
  s.ema_decay = 0.5;
  s.adaptive_kl_target = 1;
  return s;
}

void forget(const Training& training) { fs::remove_all(training.out); }

// Stops at every `stride`-th poll of a run.
void check_stops(const Training& training, int64_t stride) {
  const QuietTerminal quiet;
  REQUIRE(training.run_until(0) == 0);
  const int64_t total = polls().count;
  REQUIRE(total > 10);
  const auto straight = run_results(training.out);
  REQUIRE(straight.contains("model.h5"));
  for (int64_t first = 1; first <= total; first += stride) {
    CAPTURE(first);
    CAPTURE(total);
    forget(training);
    CHECK(training.run_until(first) == kStopped);
    if (!fs::exists(training.out + "/config.toml")) CHECK_FALSE(fs::exists(training.out));
    CHECK(training.run_until(0) == 0);
    CHECK(run_results(training.out) == straight);
  }
  forget(training);
}

// Stops again and again, `distance` polls after each start, until the run is done.
void check_many_stops(const Training& training, int64_t distance) {
  const QuietTerminal quiet;
  CAPTURE(distance);
  REQUIRE(training.run_until(0) == 0);
  const auto straight = run_results(training.out);
  forget(training);
  int stops = 0;
  for (; training.run_until(distance) == kStopped; ++stops) REQUIRE(stops < 100);
  CHECK(stops >= 2);
  CHECK(run_results(training.out) == straight);
  forget(training);
}

}  // namespace

TEST_CASE("a run stopped at some polls and resumed ends with the bytes of one that was not") {
  const RunFiles files;
  write_data(files);
  check_stops(training(run_sft, supervised_settings<SftSettings>(files)), 3);
  check_stops(training(run_reward, supervised_settings<RewardSettings>(files)), 4);
  check_stops(training(run_ppo, ppo_settings(files)), 29);
}

TEST_CASE("long: a run stopped at any poll and resumed ends with the bytes of one that was not") {
  const RunFiles files;
  write_data(files);
  check_stops(training(run_sft, supervised_settings<SftSettings>(files)), 1);
  check_stops(training(run_reward, supervised_settings<RewardSettings>(files)), 1);
  check_stops(training(run_ppo, ppo_settings(files)), 1);
}

TEST_CASE("long: a ppo run without evaluation stopped at any poll and resumed ends with the same bytes") {
  const RunFiles files;
  write_data(files);
  PpoSettings settings = ppo_settings(files);
  settings.eval_data.clear();
  settings.save_every = 0;
  check_stops(training(run_ppo, settings), 1);
}

TEST_CASE("a run stopped many times and resumed each time ends with the bytes of one that was not") {
  const RunFiles files;
  write_data(files);
  check_many_stops(training(run_sft, supervised_settings<SftSettings>(files)), 10);
  check_many_stops(training(run_reward, supervised_settings<RewardSettings>(files)), 13);
  check_many_stops(training(run_ppo, ppo_settings(files)), 60);
}

TEST_CASE("a stop while responses are drawn or scored ends within a few tokens and keeps the iterations before it") {
  const RunFiles files;
  write_data(files);
  PpoSettings settings = ppo_settings(files);
  settings.eval_data.clear();
  settings.save_every = 0;
  const Training ppo = training(run_ppo, settings);
  const QuietTerminal quiet;
  REQUIRE(ppo.run_until(0) == 0);
  const int64_t total = polls().count;
  int checkpoints = 0;
  for (int64_t first = 1; first <= total; first += 13) {
    CAPTURE(first);
    forget(ppo);
    REQUIRE(ppo.run_until(first) == kStopped);
    // Updates are finished; nothing else is begun: a poll, one more when it unwinds, those that tell how it ended.
    CHECK(polls().count <= first + 3);
    if (fs::exists(ppo.out + "/checkpoints")) checkpoints += fs::is_empty(ppo.out + "/checkpoints") ? 0 : 1;
  }
  CHECK(checkpoints > 1);
}

}  // namespace tercet::testing
