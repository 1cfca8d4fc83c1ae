// What the flags about data and judges change in a run, as a user sees it.
#include <doctest/doctest.h>

#include "app/program.h"

namespace tercet {
namespace {

struct Runs {
  Runs() { model = make_model(folder); }

  // A run into a folder of its own; returns its messages.
  std::string run(const std::string& name, std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--device", "cpu", "--out", folder.path + "/" + name});
    const ProgramResult result = run_program(arguments);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.err;
  }
  std::string sft(const std::string& name, const std::vector<std::string>& data,
                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"sft", "--model",      model, "--max-length",
                                          "100", "--batch-size", "4",   "--data"};
    arguments.insert(arguments.end(), data.begin(), data.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(name, arguments);
  }
  std::string metrics(const std::string& name) const { return read_file(folder.path + "/" + name + "/metrics.jsonl"); }
  double labelled_tokens(const std::string& name) const {
    double sum = 0;
    for (const Json& line : json_lines(metrics(name))) sum += line.at("sft/tokens_labelled").as_double();
    return sum;
  }

  TemporaryFolder folder;
  std::string model;
};

// The number before " NAME" in "data: 12 sequences, ...".
int64_t loaded(const std::string& messages, const std::string& name) {
  const size_t end = messages.find(" " + name);
  REQUIRE_MESSAGE(end != std::string::npos, messages);
  const size_t begin = messages.rfind(' ', end - 1) + 1;
  return std::stoll(messages.substr(begin, end - begin));
}

TEST_CASE("--fields reads records under other names as if they had tercet's") {
  const Runs runs;
  const std::string named = runs.folder.file(
      "a.jsonl", "{\"prompt\": \"the tin\", \"response\": \"on\"}\n{\"prompt\": \"a hen\", \"response\": \"then\"}\n");
  const std::string renamed = runs.folder.file(
      "b.jsonl", "{\"question\": \"the tin\", \"answer\": \"on\"}\n{\"question\": \"a hen\", \"answer\": \"then\"}\n");
  runs.sft("a", {named});
  runs.sft("b", {renamed}, {"--fields", "prompt=question,response=answer"});
  CHECK(runs.metrics("a") == runs.metrics("b"));
  for (const char* command : {"score", "eval"}) {
    const auto out = [&](const std::string& data, const std::vector<std::string>& more) {
      std::vector<std::string> arguments = {command, "--model", runs.model, "--data", data, "--device", "cpu"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return run_program(arguments).out;
    };
    CHECK_FALSE(out(named, {}).empty());
    CHECK(out(named, {}) == out(renamed, {"--fields", "prompt=question,response=answer"}));
  }
  const auto answers = [&](const std::string& data, const std::string& fields) {
    return run_program({"generate", "--model", runs.model, "--data", data, "--fields", fields, "--max-new-tokens", "4"})
        .out;
  };
  CHECK_FALSE(answers(named, "prompt=prompt").empty());
  CHECK(answers(named, "prompt=prompt") == answers(renamed, "prompt=question,response=answer"));
}

TEST_CASE("--turns all learns every assistant turn, each after the history before it; last the last one alone") {
  const Runs runs;
  const std::string messages = runs.folder.file(
      "m.jsonl", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "tin"}, )"
                 R"({"role": "user", "content": "b"}, {"role": "assistant", "content": "hen then"}]})"
                 "\n");
  const std::string first = runs.folder.file("1.jsonl", R"({"prompt": "\n\nHuman: a\n\nAssistant:", "response": "tin"})"
                                                        "\n");
  const std::string second = runs.folder.file(
      "2.jsonl", R"({"prompt": "\n\nHuman: a\n\nAssistant: tin\n\nHuman: b\n\nAssistant:", "response": "hen then"})"
                 "\n");
  CHECK(loaded(runs.sft("last", {messages}), "sequences") == 1);
  CHECK(loaded(runs.sft("all", {messages}, {"--turns", "all"}), "sequences") == 2);
  runs.sft("second", {second}, {"--template", "none"});
  runs.sft("both", {first, second}, {"--template", "none"});
  CHECK(runs.metrics("last") == runs.metrics("second"));
  CHECK(runs.labelled_tokens("all") == runs.labelled_tokens("both"));
  const auto loss = [&](const char* name) { return json_lines(runs.metrics(name)).at(0).at("sft/loss").as_double(); };
  // One batch, perhaps in another order.
  CHECK(loss("all") == doctest::Approx(loss("both")).epsilon(1e-5));
  CHECK(loss("all") != loss("last"));
}

TEST_CASE("FILE=WEIGHT reads a file WEIGHT times per epoch beside the others") {
  const Runs runs;
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += "{\"prompt\": \"tin " + std::to_string(i) + "\", \"response\": \"on\"}\n";
  const std::string many = runs.folder.file("many.jsonl", lines);
  const std::string one = runs.folder.file("one.jsonl", "{\"prompt\": \"a\", \"response\": \"hen\"}\n");
  CHECK(loaded(runs.sft("plain", {many, one}), "sequences") == 11);
  CHECK(loaded(runs.sft("blend", {many, one + "=3"}), "sequences") == 13);
  CHECK(loaded(runs.sft("half", {many + "=0.5", one + "=2"}, {"--seed", "4"}), "sequences") == 7);
  CHECK(runs.labelled_tokens("blend") > runs.labelled_tokens("plain"));
  const ProgramResult refused = run_program({"score", "--model", runs.model, "--data", many + "=2", "--device", "cpu"});
  CHECK(refused.exit_code == 2);
  CHECK_MESSAGE(contains(refused.err, "leave out the weight"), refused.err);
}

// A reward model that has learned something, for PPO.
std::string make_reward_model(const Runs& runs, const std::string& pairs, const std::string& name,
                              const std::string& seed) {
  runs.run(name, {"reward", "--model", runs.model, "--data", pairs, "--max-length", "100", "--steps", "2",
                  "--batch-size", "4", "--lr", "1e-3", "--seed", seed});
  return runs.folder.path + "/" + name + "/model.h5";
}

std::string pairs_about(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    lines += R"({"prompt": "say )" + number + R"(", "chosen": "it is )" + number + R"(", "rejected": "no"})" + "\n";
  }
  return lines;
}

TEST_CASE("--split gives each of the three steps its share: together all records, and none twice") {
  const Runs runs;
  const std::string pairs = runs.folder.file("p.jsonl", pairs_about(40));
  const std::string reward = make_reward_model(runs, pairs, "whole", "1");
  const int64_t sft = loaded(runs.sft("s", {pairs}, {"--split", "1,1,2"}), "sequences");
  const int64_t second = loaded(runs.run("r", {"reward", "--model", runs.model, "--data", pairs, "--max-length", "100",
                                               "--steps", "1", "--batch-size", "4", "--split", "1,1,2"}),
                                "pairs");
  const int64_t third = loaded(
      runs.run("p", {"ppo", "--actor", runs.model, "--reward-model", reward, "--data", pairs, "--steps", "1",
                     "--rollouts", "2", "--max-prompt-tokens", "60", "--max-new-tokens", "4", "--split", "1,1,2"}),
      "prompts");
  CHECK(sft > 0);
  CHECK(second > 0);
  CHECK(third > sft);
  CHECK(sft + second + third == 40);
  // All of the data to one step.
  CHECK(loaded(runs.sft("all", {pairs}, {"--split", "1,0,0"}), "sequences") == 40);
  const ProgramResult none = run_program({"sft", "--model", runs.model, "--data", pairs, "--max-length", "100",
                                          "--split", "0,1,1", "--out", runs.folder.path + "/none"});
  CHECK(none.exit_code == 2);
  CHECK_FALSE(std::filesystem::exists(runs.folder.path + "/none"));
}

TEST_CASE("--judge-model scores evaluations with a second reward model and changes nothing in training") {
  const Runs runs;
  const std::string pairs = runs.folder.file("p.jsonl", pairs_about(6));
  const std::string reward = make_reward_model(runs, pairs, "reward", "1");
  const std::string other = make_reward_model(runs, pairs, "other", "9");
  const auto ppo = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "ppo", "--actor",          runs.model, "--reward-model", reward, "--data", pairs,  "--eval-data",
        pairs, "--steps",          "2",        "--rollouts",     "4",    "--lr",   "1e-3", "--max-prompt-tokens",
        "60",  "--max-new-tokens", "6"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    runs.run(name, arguments);
    return json_lines(runs.metrics(name));
  };
  const std::vector<Json> alone = ppo("alone", {}), same = ppo("same", {"--judge-model", reward}),
                          judged = ppo("judged", {"--judge-model", other});
  REQUIRE(judged.size() == alone.size());
  int evaluations = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    // Every metric of the run without a judge is there, unchanged.
    for (const auto& [name, value] : alone[i].as_object())
      CHECK_MESSAGE((judged[i].find(name) != nullptr && judged[i].at(name) == value), name);
    CHECK(alone[i].find("eval/judge_score") == nullptr);
    if (judged[i].find("eval/score") == nullptr) continue;
    ++evaluations;
    CHECK(judged[i].at("eval/judge_score") != judged[i].at("eval/score"));
    CHECK(same[i].at("eval/judge_score").as_double() == doctest::Approx(same[i].at("eval/score").as_double()));
    CHECK(same[i].at("eval/judge_win_rate") == same[i].at("eval/win_rate"));
  }
  CHECK(evaluations == 2);
  const auto weights = [&](const std::string& name) {
    const std::string ids = runs.folder.file("ids.jsonl", "{\"ids\": [2, 40, 50, 60, 70, 80]}\n");
    return run_program({"score", "--model", runs.folder.path + "/" + name + "/model.h5", "--data", ids}).out;
  };
  CHECK(weights("alone") == weights("judged"));
  const ProgramResult refused =
      run_program({"ppo", "--actor", runs.model, "--reward-model", reward, "--judge-model", runs.model, "--data", pairs,
                   "--max-prompt-tokens", "60", "--max-new-tokens", "6", "--out", runs.folder.path + "/refused"});
  CHECK(refused.exit_code == 2);
  CHECK_MESSAGE(contains(refused.err, "--judge-model " + runs.model), refused.err);
}

}  // namespace
}  // namespace tercet
