// demo_summary: the table that ends the demo. Reads the run folders sft, reward and ppo of one demo and the answers
// that were drawn on its held-out prompts before and after the steps; prints held-out figures and five prompts with
// their answers.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/records.h"
#include "demo/answers.h"

namespace tercet::demo {
namespace {

std::vector<Json> read_metrics(const std::string& run) {
  std::vector<Json> lines;
  for_each_json_line(run + "/metrics.jsonl", [&](const Json& line, const std::string&) { lines.push_back(line); });
  return lines;
}

// First and last line of a run's metrics that hold `name`.
struct BeforeAfter {
  double before = 0, after = 0;
};

BeforeAfter held_out(const std::vector<Json>& metrics, const std::string& name) {
  std::optional<BeforeAfter> found;
  for (const Json& line : metrics)
    if (const Json* value = line.find(name)) {
      if (!found) found = BeforeAfter{value->as_double(), 0};
      found->after = value->as_double();
    }
  if (!found) fail_run(fmt::format("no line of metrics.jsonl holds {}", name), "", "run the step with --eval-data");
  return *found;
}

void print_row(const std::string& name, const std::string& before, const std::string& after) {
  fmt::print("  {:<46}{:>10}{:>10}\n", name, before, after);
}

void print_row(const std::string& name, const BeforeAfter& figure, int digits = 3) {
  print_row(name, fmt::format("{:.{}f}", figure.before, digits), fmt::format("{:.{}f}", figure.after, digits));
}

// An answer on one line.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  const size_t start = text.find_first_not_of(' ');
  return start == std::string::npos ? "(nothing)" : text.substr(start);
}

void print_answers(const std::vector<std::vector<Answer>>& answers) {
  static constexpr const char* names[] = {"start", "SFT", "PPO"};
  for (size_t i = 0; i < 5 && i < answers[0].size(); ++i) {
    fmt::print("\n  {}\n", one_line(answers[0][i].prompt));
    for (size_t model = 0; model < answers.size(); ++model)
      fmt::print("    {:<6}{}\n", names[model], one_line(answers[model][i].response));
  }
}

void summarise(const std::string& folder, bool checked) {
  const std::vector<Json> sft = read_metrics(folder + "/sft");
  const std::vector<Json> reward = read_metrics(folder + "/reward");
  const std::vector<Json> ppo = read_metrics(folder + "/ppo");
  std::vector<std::vector<Answer>> answers;
  for (const char* model : {"start", "sft", "ppo"})
    answers.push_back(read_answers(fmt::format("{}/answers-{}.jsonl", folder, model)));

  fmt::print("\nHeld-out figures{:>40}{:>10}\n", "before", "after");
  fmt::print("step 1, SFT\n");
  print_row("perplexity of demonstrations", held_out(sft, "eval/ppl"), 2);
  fmt::print("step 2, reward model\n");
  print_row("accuracy on pairs", held_out(reward, "eval/accuracy"));
  print_row("accuracy of \"the shorter wins\"", held_out(reward, "eval/shorter_wins"));
  fmt::print("step 3, PPO\n");
  print_row("score, normalised", held_out(ppo, "eval/score_normalized"));
  print_row("win rate against the SFT model", held_out(ppo, "eval/win_rate"));
  print_row("KL from the SFT model, nats per answer", held_out(ppo, "eval/kl_seq"));
  print_row("answer length, tokens", held_out(ppo, "eval/len_mean"), 1);
  print_row("answers that end", held_out(ppo, "eval/eos_rate"));
  if (checked) {
    std::vector<Rates> rates;
    for (const auto& drawn : answers) rates.push_back(checked_rates(drawn));
    fmt::print("checked by code (training never sees this)\n");
    print_row("step 1: correct answers", {rates[0].correct, rates[1].correct});
    print_row("step 1: courteous answers", {rates[0].courteous, rates[1].courteous});
    print_row("step 3: correct answers", {rates[1].correct, rates[2].correct});
    print_row("step 3: courteous answers", {rates[1].courteous, rates[2].courteous});
  }
  fmt::print("\nFive held-out prompts\n");
  print_answers(answers);
  fmt::print("\nReports\n");
  for (const char* step : {"sft", "reward", "ppo"}) fmt::print("  {}/{}/report.html\n", folder, step);
}

}  // namespace
}  // namespace tercet::demo

int main(int count, char** words) {
  try {
    const bool checked = count == 3 && std::string(words[2]) == "--check";
    if (count < 2 || (count > 2 && !checked))
      tercet::fail_input("usage: demo_summary FOLDER [--check]", "",
                         "--check: the prompts are the demo's own, so that code can check the answers");
    tercet::demo::summarise(words[1], checked);
    return 0;
  } catch (const tercet::Error& error) {
    fmt::print(stderr, "demo_summary: error: {}\n", error.what());
    return error.exit_code();
  }
}
