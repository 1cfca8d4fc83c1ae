// A reward in code: ppo, eval and rlhf on records in the form of GSM8K.
#include <doctest/doctest.h>

#include <filesystem>

#include "app/program.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

const std::vector<std::string> kThings = {"figs", "eggs", "pens", "cats"};

std::string record(const std::string& thing, const std::string& answer) {
  return R"({"question": "how many )" + thing + R"(?", "answer": ")" + answer + R"("})" + "\n";
}

std::vector<Json> lines_of(const std::string& path) { return json_lines(read_file(path)); }

struct Problems {
  Problems() {
    model = make_model(folder);
    std::string solutions, all;
    for (size_t thing = 0; thing < kThings.size(); ++thing) {
      solutions += record(kThings[thing], "#### " + std::to_string(thing + 1));
      for (size_t guess = 1; guess <= kThings.size(); ++guess)
        all += record(kThings[thing], "#### " + std::to_string(guess));
    }
    data = folder.file("solutions.jsonl", solutions);
    guesses = folder.file("guesses.jsonl", all);
  }

  std::vector<std::string> ppo(const std::string& out, const std::string& records,
                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"ppo",
                                          "--actor",
                                          model,
                                          "--data",
                                          records,
                                          "--fields",
                                          "prompt=question,response=answer",
                                          "--reward-rule",
                                          "gsm8k",
                                          "--max-prompt-tokens",
                                          "48",
                                          "--max-new-tokens",
                                          "10",
                                          "--threads",
                                          "1",
                                          "--out",
                                          folder.path + "/" + out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TemporaryFolder folder;
  std::string model, data, guesses;
};

void check_done(const ProgramResult& result) { REQUIRE_MESSAGE(result.exit_code == 0, result.err); }

TEST_CASE("ppo with a rule: no reward model, a critic that starts at 0, records without a number dropped") {
  const Problems problems;
  const std::string data = problems.folder.file(
      "more.jsonl", read_file(problems.data) + record("dogs", "nobody knows") + record("hens", "#### 2"));
  const ProgramResult result =
      run_program(problems.ppo("run", data, {"--eval-data", problems.data, "--steps", "2", "--rollouts", "5"}));
  check_done(result);
  CHECK(contains(result.err, "1 no number after #### (first at " + data + ":5)"));
  const std::string run = problems.folder.path + "/run";
  const std::vector<Json> metrics = lines_of(run + "/metrics.jsonl");
  CHECK(metrics.at(1).at("value/mean").as_double() == 0);
  CHECK(metrics.at(2).at("value/mean").as_double() != 0);
  CHECK(metrics.at(1).at("prompt/dropped").as_int() == 1);
  int rates = 0;
  for (const Json& line : lines_of(run + "/timings.jsonl"))
    if (const Json* rate = line.find("flop_per_s")) rates += rate->as_double() > 0 ? 1 : 0;
  CHECK(rates == 2);
  const ProgramResult critic = run_program({"info", run + "/critic.h5", "--json"});
  check_done(critic);
  CHECK(contains(critic.out, R"("kind":"reward model")"));
}

TEST_CASE("a critic of one's own may stand beside a rule") {
  const Problems problems;
  const std::string pairs = problems.folder.file("pairs.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                                                                "\n"
                                                                R"({"prompt": "d", "chosen": "e", "rejected": "f"})"
                                                                "\n");
  const std::string reward = problems.folder.path + "/reward";
  check_done(run_program({"reward", "--model", problems.model, "--data", pairs, "--max-length", "64", "--steps", "1",
                          "--batch-size", "2", "--out", reward}));
  check_done(run_program(problems.ppo("run", problems.data, {"--critic", reward + "/model.h5", "--steps", "1"})));
  const std::vector<Json> metrics = lines_of(problems.folder.path + "/run/metrics.jsonl");
  CHECK(metrics.at(0).at("value/mean").as_double() != 0);
}

TEST_CASE("a run with a rule that is resumed ends with the bytes of one that was not stopped") {
  const Problems problems;
  const std::vector<std::string> settings = {"--rollouts", "4", "--schedule", "constant", "--lr", "1e-3"};
  const auto run = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), settings.begin(), settings.end());
    check_done(run_program(problems.ppo(out, problems.data, more)));
  };
  run("whole", {"--steps", "2"});
  run("parts", {"--steps", "1"});
  const std::string parts = problems.folder.path + "/parts", whole = problems.folder.path + "/whole";
  fs::remove(problems.model);
  check_done(run_program({"ppo", "--out", parts, "--resume", "--steps", "2"}));
  for (const char* file : {"/metrics.jsonl", "/samples.jsonl"})
    CHECK(read_file(parts + file) == read_file(whole + file));
}

TEST_CASE("ppo learns the right numbers from the rule, as a pipeline without a reward model") {
  const Problems problems;
  const std::string text =
      "threads = 1\ndevice = \"cpu\"\nfields = \"prompt=question,response=answer\"\nmax-prompt-tokens = 48\n"
      "max-new-tokens = 10\n[model]\nsft = \"" +
      problems.model + "\"\n[sft]\ndata = \"" + problems.guesses +
      "\"\nsteps = 200\nbatch-size = 16\nlr = 1e-2\nmax-length = 64\n[ppo]\nreward-rule = \"gsm8k\"\ndata = \"" +
      problems.data +
      "\"\nsteps = 40\nrollouts = 64\nminibatches = 2\nlr = 2e-3\nschedule = \"constant\"\nkl-coef = 0.0\n"
      "[eval]\ndata = \"" +
      problems.data + "\"\n";
  const std::string config = problems.folder.file("pipeline.toml", text), out = problems.folder.path + "/out";
  const ProgramResult result = run_program({"rlhf", "--config", config, "--out", out});
  check_done(result);
  CHECK_FALSE(fs::exists(out + "/reward"));
  const std::vector<Json> metrics = lines_of(out + "/ppo/metrics.jsonl");
  double last = 0;
  for (size_t i = metrics.size() - 5; i < metrics.size(); ++i) last += metrics[i].at("objective/score").as_double() / 5;
  CHECK(metrics[0].at("objective/score").as_double() < 0.45);  // guesses: 1 of 4
  CHECK(last > 0.8);                                           // more than three of four problems
  CHECK(contains(result.out, "after ppo"));

  const ProgramResult again = run_program({"rlhf", "--config", config, "--out", out});
  check_done(again);
  for (const char* step : {"sft", "ppo", "eval"}) CHECK(contains(again.err, std::string(step) + ": finished, skipped"));
}

TEST_CASE("what does not go with a rule is refused") {
  const Problems problems;
  const auto refused = [&](const ProgramResult& result, const std::string& message) {
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(contains(result.err, message), result.err);
  };
  refused(run_program({"ppo", "--actor", "a.h5", "--data", "d.jsonl", "--out", "r"}),
          "--reward-model, --reward-rule: responses are scored by a reward model or by a rule; give one of them");
  refused(run_program(problems.ppo("run", problems.data, {"--reward-model", problems.model})), "give one of them");
  refused(run_program(problems.ppo("run", problems.folder.file("p.jsonl", "{\"question\": \"a\"}\n"))),
          "no usable record (1 record read; 1 dropped: 1 no number after ####");
  refused(run_program({"eval", "--model", "m.h5", "--data", "d.jsonl", "--reward-rule", "gsm8k"}),
          "a comparison needs --baseline and either --reward-model or --reward-rule");
  const std::string start = "data = \"" + problems.data + "\"\n[model]\nsft = \"" + problems.model + "\"\n";
  const auto refused_pipeline = [&](const std::string& text, const std::string& message) {
    refused(run_program({"rlhf", "--config", problems.folder.file("bad.toml", start + text), "--out",
                         problems.folder.path + "/none"}),
            message);
    CHECK_FALSE(fs::exists(problems.folder.path + "/none"));
  };
  const std::string rule = "[ppo]\nreward-rule = \"gsm8k\"\n";
  refused_pipeline(rule + "[reward]\nlr = 1e-5\n", "bad.toml:6: ppo has a reward-rule: no reward model is trained");
  refused_pipeline("reward = \"r.h5\"\n" + rule, "bad.toml:4: ppo has a reward-rule");
  refused_pipeline(rule + "[eval]\nreward-rule = \"gsm8k\"\n", "bad.toml:7: reward-rule: the rule is ppo's");
  refused_pipeline("[ppo]\nreward-rule = \"\"\n", "bad.toml:5: reward-rule: the name of a rule is missing");
  refused_pipeline("[ppo]\nreward-rule = \"math\"\n", "--reward-rule: \"math\" is not allowed");
}

}  // namespace
}  // namespace tercet
