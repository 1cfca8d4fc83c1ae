// The whole pipeline from one file: what is run, skipped, resumed and run again.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "app/program.h"
#include "base/file.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

struct Pipeline {
  Pipeline() {
    const std::string settings = folder.file(
        "config.json",
        R"({"model_type": "opt", "vocab_size": 272, "hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 32,)"
        R"( "num_attention_heads": 2, "max_position_embeddings": 128, "init_std": 0.3})");
    model = folder.path + "/start.h5";
    const ProgramResult made =
        run_program({"init", "--config", settings, "--tokenizer", kTokenizerFolder, "--out", model});
    REQUIRE_MESSAGE(made.exit_code == 0, made.err);
    std::string pairs;
    for (const char* word : {"tea", "milk", "salt", "rice", "figs", "corn", "dill", "peas"})
      pairs +=
          std::string(R"({"prompt": "is )") + word + R"(?", "chosen": "a )" + word + R"(", "rejected": "no"})" + "\n";
    data = folder.file("pairs.jsonl", pairs);
    write(text());
  }

  std::string text() const {
    return "threads = 1\nseed = 3\ndevice = \"cpu\"\ndata = \"" + data + "\"\nmax-length = 64\n[model]\nsft = \"" +
           model +
           "\"\n[sft]\nsteps = 3\nbatch-size = 4\nlr = 1e-2\n[reward]\nsteps = 3\nbatch-size = 4\nlr = 1e-3\n"
           "[ppo]\nsteps = 2\nrollouts = 4\nmax-prompt-tokens = 64\nmax-new-tokens = 6\neval-data = \"" +
           data + "\"\n[eval]\ndata = \"" + data + "\"\nmax-new-tokens = 6\n";
  }
  std::string often_saved() const { return "save-every = 1\n" + text(); }
  void write(const std::string& contents) { config = folder.file("pipeline.toml", contents); }
  std::string out(const std::string& name = "run") const { return folder.path + "/" + name; }
  ProgramResult run(const std::string& name = "run", const std::string& before = "") const {
    return run_program({"rlhf", "--config", config, "--out", out(name)}, "", before);
  }

  // Runs until a file appears, and sends the signal; the status of waitpid().
  int run_until(const std::string& file, int signal) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const int log = ::open((folder.path + "/log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::execl(TERCET_BINARY_DIR "/tercet", "tercet", "rlhf", "--config", config.c_str(), "--out", out().c_str(),
              nullptr);
      ::_exit(127);
    }
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (!fs::exists(out() + "/" + file)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      ::kill(child, signal);
      ::waitpid(child, &status, 0);
      break;
    }
    return status;
  }
  std::string log() const { return read_file(folder.path + "/log"); }

  // What must depend neither on interruptions nor on the folder.
  std::map<std::string, std::string> results(const std::string& name = "run") const {
    std::map<std::string, std::string> files;
    for (const char* file : {"sft/model.h5", "sft/metrics.jsonl", "sft/config.toml", "reward/model.h5",
                             "reward/metrics.jsonl", "reward/config.toml", "ppo/model.h5", "ppo/best.h5",
                             "ppo/critic.h5", "ppo/metrics.jsonl", "ppo/samples.jsonl", "ppo/config.toml", "eval.json"})
      files[file] = read_file(out(name) + "/" + file);
    return files;
  }

  TemporaryFolder folder;
  std::string model, data, config;
};

void check_said(const ProgramResult& result, const std::vector<std::string>& lines) {
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  for (const std::string& line : lines) CHECK_MESSAGE(contains(result.err, line), line << "\n" << result.err);
}

void check_equal(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  for (const auto& [name, bytes] : a) CHECK_MESSAGE(b.at(name) == bytes, name);
}

void check_refused(const ProgramResult& result, const std::string& message) {
  CHECK_MESSAGE(result.exit_code == 2, result.err);
  CHECK_MESSAGE(contains(result.err, message), result.err);
}

TEST_CASE("rlhf runs three steps and a comparison, and a second time skips them") {
  const Pipeline pipeline;
  const ProgramResult first = pipeline.run();
  check_said(first, {"sft: starts", "reward: starts", "ppo: starts", "eval: starts"});
  CHECK_MESSAGE(contains(first.out, "ppo wins"), first.out);
  CHECK(fs::exists(pipeline.out() + "/ppo/report.html"));
  CHECK(read_file(pipeline.out() + "/pipeline.toml") == pipeline.text());
  const auto results = pipeline.results();
  CHECK(parse_json(results.at("eval.json"), "eval.json").at("prompts") == Json(8));
  const ProgramResult second = pipeline.run();
  check_said(second, {"sft: finished, skipped", "reward: finished, skipped", "ppo: finished, skipped",
                      "eval: finished, skipped"});
  CHECK(second.out == first.out);
  check_equal(results, pipeline.results());

  const std::string moved = pipeline.out("moved");
  fs::rename(pipeline.out(), moved);
  check_said(pipeline.run("moved"), {"sft: finished, skipped", "reward: finished, skipped", "ppo: finished, skipped",
                                     "eval: finished, skipped"});
}

// Takes from a finished pipeline what a process killed at that point has not written yet.
TEST_CASE("rlhf that ended between or in steps goes on where it was, to the same bytes") {
  Pipeline pipeline;
  pipeline.write(pipeline.often_saved());
  REQUIRE(pipeline.run().exit_code == 0);
  const auto results = pipeline.results();
  const std::vector<std::string> steps = {"sft", "reward", "ppo"};
  const auto check_goes_on = [&](size_t done, const std::string& line) {
    for (size_t later = done + 1; later < steps.size(); ++later) fs::remove_all(pipeline.out() + "/" + steps[later]);
    fs::remove(pipeline.out() + "/eval.json");
    const ProgramResult again = pipeline.run();
    check_said(again, {line, "eval: starts"});
    for (size_t i = 0; i < done; ++i) check_said(again, {steps[i] + ": finished, skipped"});
    check_equal(results, pipeline.results());
    return again;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(steps[i]);
    const std::string folder = pipeline.out() + "/" + steps[i];
    const std::string last = steps[i] == "ppo" ? "/checkpoints/step-00000002.h5" : "/checkpoints/step-00000003.h5";
    for (const std::string& name : {std::string("/model.h5"), std::string("/report.html"), last})
      REQUIRE(fs::remove(folder + name));
    const ProgramResult resumed = check_goes_on(i, steps[i] + ": goes on where it was");
    CHECK_MESSAGE(contains(resumed.err, steps[i] == "ppo" ? "(step 1 of 2)" : "(step 2 of 3)"), resumed.err);
    if (i == 0) continue;
    fs::remove_all(folder);
    check_goes_on(i, steps[i] + ": starts");
  }
  check_goes_on(2, "ppo: finished, skipped");
  fs::remove(pipeline.out() + "/sft/report.html");
  fs::remove_all(pipeline.out() + "/sft/checkpoints");
  CHECK_MESSAGE(contains(check_goes_on(0, "sft: goes on where it was").err, "the run begins again"), "sft");
}

TEST_CASE("rlhf that is killed again and again ends with the bytes of an uninterrupted one in another folder") {
  Pipeline pipeline;
  pipeline.write(pipeline.often_saved());
  REQUIRE(pipeline.run("whole").exit_code == 0);
  for (const char* file : {"sft/config.toml", "sft/checkpoints/step-00000001.h5", "sft/model.h5", "reward/config.toml",
                           "reward/checkpoints/step-00000001.h5", "reward/report.html", "ppo/inputs/actor.h5",
                           "ppo/checkpoints/step-00000001.h5", "ppo/report.html"}) {
    const int status = pipeline.run_until(file, SIGKILL);
    CHECK_MESSAGE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0), file << "\n" << pipeline.log());
  }
  check_said(pipeline.run(), {"sft: finished, skipped", "reward: finished, skipped"});
  check_equal(pipeline.results("whole"), pipeline.results());
}

TEST_CASE("rlhf saves at a signal, says its own command to go on, and ends with the same bytes") {
  Pipeline pipeline;
  pipeline.write(replaced(pipeline.often_saved(), "[sft]\nsteps = 3", "[sft]\nsteps = 20"));
  REQUIRE(pipeline.run("whole").exit_code == 0);
  for (const auto& [file, signal] : {std::pair("sft/checkpoints/step-00000001.h5", SIGINT),
                                     std::pair("reward/config.toml", SIGTERM), std::pair("ppo/config.toml", SIGINT)}) {
    const int status = pipeline.run_until(file, signal);
    REQUIRE(WIFEXITED(status));
    CHECK_MESSAGE((WEXITSTATUS(status) == 128 + signal || WEXITSTATUS(status) == 0), pipeline.log());
    if (WEXITSTATUS(status) == 0) continue;  // the run was faster than this test
    const std::string command = "to go on: tercet rlhf --config " + pipeline.config + " --out " + pipeline.out() + "\n";
    CHECK_MESSAGE(contains(pipeline.log(), command), pipeline.log());
    CHECK_FALSE(contains(pipeline.log(), "--resume"));
  }
  CHECK(pipeline.run().exit_code == 0);
  check_equal(pipeline.results("whole"), pipeline.results());
}

TEST_CASE("rlhf runs again from the step that a change touches, says why, and gives what a new pipeline gives") {
  Pipeline pipeline;
  REQUIRE(pipeline.run().exit_code == 0);
  const std::string text = pipeline.text(), out = pipeline.out();
  const auto check_rerun = [&](const std::string& contents, const std::vector<std::string>& lines) {
    pipeline.write(contents);
    check_said(pipeline.run(), lines);
  };
  const std::string follows = "; what is made from its model follows: ";

  check_rerun(
      "keep = 1\neval-every = 1\n" + replaced(text, "threads = 1", "threads = 2"),  // a resumed run may change these
      {"sft: finished, skipped", "reward: finished, skipped", "ppo: finished, skipped"});
  check_rerun(
      replaced(text, "[eval]\n", "[eval]\nseed = 9\n"),
      {"ppo: finished, skipped", "eval: --seed was 3 and is 9: runs again and replaces " + out + "/eval.json\n"});
  check_rerun(replaced(text, "rollouts = 4", "rollouts = 3"),
              {"reward: finished, skipped",
               "ppo: --rollouts was 4 and is 3: runs again and replaces " + out + "/ppo" + follows + "eval\n",
               "eval: --seed was 9 and is 3, ppo/model.h5 has changed: runs again"});
  check_rerun(replaced(text, "[reward]\nsteps = 3", "[reward]\nsteps = 2"),
              {"sft: finished, skipped",
               "reward: --steps was 3 and is 2: runs again and replaces " + out + "/reward" + follows + "ppo, eval\n",
               "ppo: --rollouts was 3 and is 4, ../reward/model.h5 has changed: runs again"});
  const std::string changed = replaced(text, "lr = 1e-2", "lr = 2e-2");
  check_rerun(changed, {"sft: --lr was 0.01 and is 0.02: runs again and replaces " + out + "/sft" + follows +
                            "reward, ppo, eval\n",
                        "reward: --steps was 2 and is 3, ../sft/model.h5 has changed: runs again"});
  const std::string other_start = replaced(changed, "[sft]", "reward = \"" + pipeline.model + "\"\n[sft]");
  check_rerun(other_start, {"sft: finished, skipped", "reward: --model was \"../sft/model.h5\" and is \""});
  check_rerun(replaced(replaced(other_start, "lr = 2e-2", "lr = 3e-2"), "rollouts = 4", "rollouts = 2"),
              {follows + "ppo, eval\n", "reward: finished, skipped",
               "ppo: --rollouts was 4 and is 2, ../sft/model.h5 has changed: runs again"});

  const std::string pairs = read_file(pipeline.data);
  pipeline.folder.file("pairs.jsonl", pairs.substr(pairs.find('\n') + 1));
  check_rerun(text, {pipeline.data + " has changed: runs again and replaces " + out + "/sft"});
  REQUIRE(pipeline.run("new").exit_code == 0);
  check_equal(pipeline.results("new"), pipeline.results());
}

TEST_CASE("an unfinished step goes on with what a resumed run may change") {
  Pipeline pipeline;
  REQUIRE(pipeline.run().exit_code == 0);
  fs::remove(pipeline.out() + "/reward/report.html");
  pipeline.write(replaced(pipeline.text(), "[reward]\nsteps = 3", "[reward]\nsteps = 5\nsave-every = 2"));
  const ProgramResult result = pipeline.run();
  check_said(result, {"reward: goes on where it was; --steps was 3 and is 5\n", "(step 3 of 5)"});
  CHECK(fs::exists(pipeline.out() + "/reward/checkpoints/step-00000005.h5"));
  fs::remove(pipeline.out() + "/reward/report.html");
  pipeline.write(replaced(pipeline.text(), "lr = 1e-3", "lr = 2e-3"));
  check_said(pipeline.run(), {"reward: --steps was 5 and is 3, --lr was 0.001 and is 0.002: runs again"});
}

TEST_CASE("a change that a step refuses costs nothing") {
  Pipeline pipeline;
  REQUIRE(pipeline.run().exit_code == 0);
  const auto results = pipeline.results();
  pipeline.write(replaced(pipeline.text(), "max-length = 64", "max-length = 500"));
  check_refused(pipeline.run(), "500 exceeds the 128 positions");
  check_equal(results, pipeline.results());
  pipeline.write(pipeline.text());
  check_said(pipeline.run(), {"sft: finished, skipped", "ppo: finished, skipped", "eval: finished, skipped"});
}

TEST_CASE("rlhf refuses what it cannot do before the first step, and leaves nothing") {
  Pipeline pipeline;
  const std::string text = pipeline.text();
  const auto check_nothing_begins = [&](const std::string& contents, const std::string& message) {
    pipeline.write(contents);
    check_refused(pipeline.run("a/b/run"), message);
    CHECK_FALSE(fs::exists(pipeline.out("a")));
  };
  const std::string model = "[model]\nsft = \"" + pipeline.model + "\"\n",
                    eval_data = "data = \"" + pipeline.data + "\"";
  check_nothing_begins(replaced(text, "[reward]", "[rewards]"), "pipeline.toml:12: the table [rewards] is not known");
  check_nothing_begins(text + "[judge]\n", "pipeline.toml:25: the table [judge] is not known");
  check_nothing_begins(replaced(text, "rollouts", "rolouts"),
                       "pipeline.toml:18: rolouts: unknown flag; did you mean --rollouts?");
  check_nothing_begins("top-q = 3\n" + text, "pipeline.toml:1: top-q: no step has such a flag");
  check_nothing_begins(replaced(text, "[sft]\n", "[sft]\nmodel = \"x.h5\"\n"), "model: the pipeline decides it");
  check_nothing_begins(replaced(text, "[model]\nsft", "[model]\nactor"), "pipeline.toml:7: actor: [model] has no such");
  check_nothing_begins(replaced(text, model, ""), "the pipeline has no model to start from");
  check_nothing_begins(replaced(text, model, "[model]\n"), "the pipeline has no model to start from");
  check_nothing_begins(replaced(text, "[ppo]\n", "[ppo]\ngamma = \"x\"\n"), "gamma: \"x\" is not allowed");
  check_nothing_begins(replaced(text, "[eval]\n" + eval_data, "[eval]"), "eval needs --data");
  check_nothing_begins(replaced(text, "[reward]\n", "[reward]\neval-data = \"absent.jsonl\"\n"), "absent.jsonl");
  check_nothing_begins(replaced(text, pipeline.model, "absent.h5"), "absent.h5");
  const std::string bad = pipeline.folder.file("bad.jsonl", "{\"prompt\": \n");
  check_nothing_begins(replaced(text, pipeline.data, bad), "bad.jsonl:1");
}

TEST_CASE("without [eval] nothing is compared, and steps without a table keep their defaults") {
  Pipeline pipeline;
  pipeline.write("threads = 1\ndevice = \"cpu\"\ndata = \"" + pipeline.data +
                 "\"\nmax-length = 64\nbatch-size = 4\nsteps = 1\n" + "[model]\nsft = \"" + pipeline.model +
                 "\"\n[ppo]\nmax-prompt-tokens = 64\nmax-new-tokens = 4\n");
  const ProgramResult result = pipeline.run();  // batch-size is not for ppo
  check_said(result, {"ppo: starts", "step 1/1"});
  CHECK_FALSE(contains(result.err, "eval:"));
  CHECK(result.out == "");
  CHECK(contains(read_file(pipeline.out() + "/ppo/config.toml"), "rollouts = 64\n"));
}

TEST_CASE("rlhf keeps to its own folder") {
  const Pipeline pipeline;
  fs::create_directories(pipeline.out() + "/sft");
  check_refused(pipeline.run(), "the folder holds sft but no pipeline");
  CHECK(fs::exists(pipeline.out() + "/sft"));
  fs::remove(pipeline.out() + "/sft");
  check_refused(pipeline.run("run", "flock " + pipeline.out() + "/.lock"), "in use by another process");
  CHECK_FALSE(fs::exists(pipeline.out() + "/pipeline.toml"));
}

}  // namespace
}  // namespace tercet
