#include "train/comparison.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "train/page.h"
#include "train/run_files.h"
#include "train/run_folder.h"

namespace tercet {
namespace {

using testing::logged_points;
using testing::plotted_series;
using testing::PlottedSeries;
using testing::RunFiles;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct RunOptions {
  std::string step = "ppo";
  double kl_coef = 0.05;
  std::string reward_hash = "aaaaaaaa1";
  std::string data = "d.jsonl";
  bool normalize = true;
  std::string judge_hash = {};
  std::string reward_rule = {};
};

// A run of four steps with two evaluations.
std::string write_run(const RunFiles& files, const std::string& name, const RunOptions& options = {}) {
  RunFolder folder({.path = files.file(name), .step = options.step});
  Json settings = Json::object(), hashes = Json::object();
  settings.set("data", Json(Json::Array{Json(options.data + "=2")})).set("kl-coef", options.kl_coef);
  hashes.set(options.data, "dddddddd1");
  if (options.step == "ppo") {
    const bool model = options.reward_rule.empty();
    settings.set("reward-model", model ? "r.h5" : "").set("reward-rule", options.reward_rule);
    settings.set("normalize-reward", options.normalize);
    if (model) hashes.set("r.h5", options.reward_hash);
    settings.set("judge-model", options.judge_hash.empty() ? "" : "j.h5");
    if (!options.judge_hash.empty()) hashes.set("j.h5", options.judge_hash);
  }
  folder.write_or_check_config(settings, hashes);
  const auto evaluation = [&](int64_t step, double score) {
    Json line = Json::object();
    folder.metrics(line.set("step", step).set("eval/score", score).set("eval/kl_seq", score / 3));
  };
  evaluation(0, 0.25);
  for (int64_t step = 1; step <= 4; ++step) {
    Json line = Json::object(), timings = Json::object();
    const double x = options.kl_coef * static_cast<double>(step);
    line.set("step", step).set("objective/score", x == 0 ? Json("nan") : Json(x)).set("objective/kl_seq", 1 / 3.0 + x);
    line.set("objective/score_normalized", x / 7).set("policy/entropy", 0.1 - x).set("tokens_seen", 1000 * step);
    folder.metrics(line.set("sft/loss", 3 - x));
    folder.timings(timings.set("step", step).set("tokens_per_s", 100.5 + x));
  }
  evaluation(4, 0.75);
  return files.file(name);
}

std::set<std::string> figures_of(const std::string& page) {
  std::set<std::string> names;
  for (const PlottedSeries& series : plotted_series(page)) names.insert(series.figure);
  return names;
}

}  // namespace

TEST_CASE("each curve of a comparison is what the logs of its run say, against steps, tokens and KL") {
  const RunFiles files;
  const std::vector<std::string> runs = {write_run(files, "a"), write_run(files, "b", {.kl_coef = 0.01}),
                                         write_run(files, "c", {.kl_coef = 0})};
  const std::string page = comparison_page(compare_runs(runs));
  CHECK(testing::is_self_contained(page));
  std::set<std::string> x_names, labels;
  for (const PlottedSeries& series : plotted_series(page)) {
    CAPTURE(series.figure);
    CAPTURE(series.label);
    CHECK(series.placed);
    CHECK(series.points == logged_points(files.file(series.run), series));
    x_names.insert(series.x_name);
    labels.insert(series.label);
  }
  CHECK(x_names == std::set<std::string>{"step", "tokens_seen", "objective/kl_seq", "eval/kl_seq"});
  CHECK(labels == std::set<std::string>{"a", "a, held out", "b", "b, held out", "c", "c, held out"});
  CHECK(contains(page, "Against tokens"));
  CHECK(contains(page, "c: 4 of 4 values are not finite"));
}

TEST_CASE("held-out figures are drawn against the tokens of the step that they follow") {
  const RunFiles files;
  const std::string page = comparison_page(compare_runs({write_run(files, "a"), write_run(files, "b")}));
  bool found = false;
  for (const PlottedSeries& series : plotted_series(page))
    if (series.y_name == "eval/score" && series.x_name == "tokens_seen") {
      CHECK(series.points == testing::Points{{0, 0.25}, {4000, 0.75}});
      found = true;
    }
  CHECK(found);
}

TEST_CASE("settings that differ are listed and no others, inputs by hash and not by path") {
  const RunFiles files;
  const Comparison comparison =
      compare_runs({write_run(files, "a"), write_run(files, "b", {.kl_coef = 0.1, .data = "elsewhere/d.jsonl"})});
  REQUIRE(comparison.tables.size() == 2);
  CHECK(comparison.tables[0].title == "Last figures");
  CHECK(comparison.tables[1].title == "Settings that differ");
  CHECK(comparison.tables[1].header == std::vector<std::string>{"flag", "a", "b"});
  CHECK(comparison.tables[1].rows ==
        std::vector<std::vector<std::string>>{{"data", "[\"d.jsonl=2\"]", "[\"elsewhere/d.jsonl=2\"]"},
                                              {"kl-coef", "0.05", "0.1"}});
  CHECK(comparison.notes.empty());
  const std::string text = comparison_text(comparison);
  CHECK(contains(text, "2 runs of ppo\n"));
  CHECK(contains(text, "  kl-coef  0.05"));
  CHECK(contains(text, "  tokens "));
}

TEST_CASE("scores of one rule share an axis, scores of a rule and of a model do not") {
  const RunFiles files;
  const RunOptions rule{.reward_rule = "gsm8k"};
  const Comparison same = compare_runs({write_run(files, "a", rule), write_run(files, "b", rule)});
  CHECK(same.notes.empty());
  CHECK(figures_of(comparison_page(same)).contains("Score"));
  const Comparison different = compare_runs({files.file("a"), write_run(files, "c")});
  REQUIRE(different.notes.size() == 1);
  CHECK(contains(different.notes[0], "The rewards differ (a gsm8k, c aaaaaaaa)"));
}

TEST_CASE("scores of different reward models share no axis, and a note says why") {
  const RunFiles files;
  const Comparison comparison =
      compare_runs({write_run(files, "a"), write_run(files, "b", {.reward_hash = "bbbbbbbb2"}), write_run(files, "c")});
  REQUIRE(comparison.notes.size() == 1);
  CHECK(contains(comparison.notes[0], "The rewards differ (a aaaaaaaa, b bbbbbbbb, c aaaaaaaa)"));
  const std::string page = comparison_page(comparison);
  CHECK(contains(page, comparison.notes[0]));
  const std::set<std::string> figures = figures_of(page);
  for (const char* figure : {"Score: a", "Score: b", "Score: c"}) CHECK(figures.contains(figure));
  CHECK_FALSE(figures.contains("Score"));
  CHECK(figures.contains("KL"));
  CHECK(contains(comparison_text(comparison), "Score, held out (own scale)"));
  const HtmlTable& inputs = comparison.tables.back();
  CHECK(inputs.title == "Inputs whose hashes differ");
  CHECK(inputs.rows ==
        std::vector<std::vector<std::string>>{{"reward-model", "aaaaaaaa r.h5", "bbbbbbbb r.h5", "aaaaaaaa r.h5"}});
}

TEST_CASE("normalised scores share no axis with those of a run that does not normalise; raw ones do") {
  const RunFiles files;
  const Comparison comparison = compare_runs({write_run(files, "a"), write_run(files, "b", {.normalize = false})});
  REQUIRE(comparison.notes.size() == 1);
  const std::set<std::string> figures = figures_of(comparison_page(comparison));
  CHECK(figures.contains("Score"));
  CHECK(figures.contains("Normalised score: a"));
}

TEST_CASE("judges that differ are told, and a run without one does not count") {
  const RunFiles files;
  const std::string a = write_run(files, "a"), b = write_run(files, "b", {.judge_hash = "11111111x"}),
                    c = write_run(files, "c", {.judge_hash = "22222222x"});
  CHECK(compare_runs({a, b}).notes.empty());
  REQUIRE(compare_runs({a, b, c}).notes.size() == 1);
  CHECK(contains(compare_runs({a, b, c}).notes[0], "The judges differ (a none, b 11111111, c 22222222)"));
}

TEST_CASE("runs are called by as much of their paths as tells them apart") {
  const RunFiles files;
  const std::string a = write_run(files, "one/ppo"), b = write_run(files, "two/ppo");
  const Comparison comparison = compare_runs({a, b + "/"});
  CHECK(comparison.runs[0].label == "one/ppo");
  CHECK(comparison.runs[1].label == "two/ppo");
}

TEST_CASE("names of runs and values of settings are escaped") {
  const RunFiles files;
  const std::string page = comparison_page(compare_runs(
      {write_run(files, "<script>alert(1)<"), write_run(files, "a&\"b\"", {.data = "</table><script>&"})}));
  CHECK(testing::is_self_contained(page));
  CHECK_FALSE(contains(page, "<script"));
  CHECK(contains(page, "&lt;script&gt;alert(1)&lt;"));
}

TEST_CASE("runs that have done nothing yet, or are writing a line, are compared as far as they are") {
  const RunFiles files;
  const std::string a = write_run(files, "a"), b = write_run(files, "b");
  std::filesystem::remove(a + "/timings.jsonl");
  write_file_atomically(a + "/metrics.jsonl", "");
  const std::string whole = read_file(b + "/metrics.jsonl");
  write_file_atomically(b + "/metrics.jsonl", whole + "{\"step\": 5, \"tokens_s");
  const Comparison comparison = compare_runs({a, b});
  CHECK(comparison.tables[0].rows[0] == std::vector<std::string>{"step", "", "4"});
  CHECK(testing::is_self_contained(comparison_page(comparison)));
  std::filesystem::remove(b + "/metrics.jsonl");
  CHECK(plotted_series(comparison_page(compare_runs({a, b}))).size() == 1);  // the rate of b
}

TEST_CASE("what cannot be compared is refused with what, where and a remedy") {
  const RunFiles files;
  const std::string a = write_run(files, "pipeline/ppo"), b = write_run(files, "sft", {.step = "sft"});
  const auto refused = [](const std::vector<std::string>& runs, const std::string& message) {
    try {
      compare_runs(runs);
      FAIL_CHECK("not refused: " << message);
    } catch (const Error& error) {
      CHECK(error.exit_code() == 2);
      CHECK_MESSAGE(contains(error.what(), message), error.what());
    }
  };
  refused({a, b}, "a run of ppo and this one of sft");
  refused({a}, "give two runs or more");
  refused({a, a}, "the run is given twice");
  refused({a, files.file("pipeline")}, "name the run within it: ppo");
  refused({a, files.file("none")}, "there is no such folder");
  std::filesystem::create_directory(files.file("empty"));
  refused({a, files.file("empty")}, "the folder holds no run");
  refused(std::vector<std::string>(9, a), "9 runs are too many to tell apart");
  const std::string c = write_run(files, "c");
  write_file_atomically(c + "/metrics.jsonl", "{\"step\": 1}\n{\"step\": \n");
  refused({a, c}, "metrics.jsonl:2");
}

}  // namespace tercet
