#include "train/report.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "train/page.h"
#include "train/report_samples.h"
#include "train/run_files.h"
#include "train/run_folder.h"

namespace tercet {
namespace {

using testing::logged_points;
using testing::parse_page;
using testing::plotted_series;
using testing::PlottedSeries;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Json metric_line(int64_t step, const char* name, Json value) {
  Json line = Json::object();
  return line.set("step", step).set(name, std::move(value));
}

LogColumns columns(const std::vector<Json>& lines) {
  LogColumns columns;
  for (const Json& line : lines) columns.add(line);
  return columns;
}

Json text_sample(int64_t step, int64_t index, const std::string& prompt, const std::string& response) {
  Json sample = Json::object();
  return sample.set("step", step).set("index", index).set("prompt", prompt).set("response", response);
}

Json pair_sample(int64_t index, Json chosen_score, double rejected_score, int64_t length) {
  const double chosen = chosen_score.is_number() ? chosen_score.as_double() : NAN;
  Json sample = Json::object();
  sample.set("step", 7).set("index", index).set("record", 10 + index).set("held_out", true);
  sample.set("prompt", "\n\nHuman: <script>alert(1)</script> & \"co\"").set("chosen", "a<b>").set("rejected", "c&d");
  sample.set("chosen_score", chosen_score).set("rejected_score", rejected_score).set("margin", chosen - rejected_score);
  return sample.set("chosen_length", length).set("rejected_length", length + 1);
}

ReportInput small_report() {
  ReportInput input{.title = "sft: <run> & \"co\"", .step = "sft"};
  std::vector<Json> lines;
  for (int64_t step = 0; step <= 4; ++step)
    lines.push_back(metric_line(step, "sft/loss", 5.0 / (1.0 + static_cast<double>(step))));
  lines.push_back(metric_line(0, "eval/loss", 5.5));
  lines.push_back(metric_line(4, "eval/loss", 1.25));
  input.metrics = columns(lines);
  input.plots = standard_plots("sft");
  input.tables.push_back({"Settings", {"flag", "value"}, {{"data", "</table><script>alert(1)</script>"}}});
  input.memory_plan = "memory plan\n  sum 1 < 2";
  return input;
}

// A run folder whose logs have all metrics of the step's plots, some absent and some not finite.
void write_run(const std::string& path, const std::string& step) {
  RunFolder folder({.path = path, .step = step});
  Json settings = Json::object(), hashes = Json::object();
  folder.write_or_check_config(settings.set("lr", 1e-5), hashes.set("data.jsonl", "0123abcd"));
  for (int64_t i = 1; i <= 12; ++i) {
    Json metrics = Json::object(), timings = Json::object();
    metrics.set("step", i);
    timings.set("step", i);
    double value = 0.1 * static_cast<double>(i);
    for (const PlotSpec& plot : standard_plots(step))
      for (const PlotSpec::Series& series : plot.series)
        (plot.log == "timings.jsonl" ? timings : metrics).set(series.name, value += 1.0 / 3);
    if (i == 5) metrics.set(step == "sft" ? "sft/loss" : step == "reward" ? "rm/loss" : "objective/score", NAN);
    if (i == 6) metrics.set("lr", "inf");
    folder.metrics(metrics);
    folder.timings(timings);
  }
  for (int64_t i = 0; i < 5; ++i)
    if (step == "reward")
      folder.sample(pair_sample(i, 0.5 * static_cast<double>(i), 1, 3 + i));
    else
      folder.sample(text_sample(12, i, "p", "r").set(step == "ppo" ? "score" : "loss", 0.5));
  write_report(path, {.memory_plan = "memory plan"});
}

}  // namespace

TEST_CASE("a report is one well-formed page that loads nothing, and escapes all that it is given") {
  const std::string html = render_report(small_report());
  CHECK(parse_page(html));
  CHECK(testing::is_self_contained(html));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "http"));
  CHECK(contains(html, "sft: &lt;run&gt; &amp; &quot;co&quot;"));
  CHECK(contains(html, "&lt;/table&gt;&lt;script&gt;"));
  CHECK(contains(html, "sum 1 &lt; 2"));
  CHECK(contains(html, "prefers-color-scheme: dark"));
}

TEST_CASE("the reader of pages refuses what is not well formed") {
  for (const char* page : {"<p>", "<p></b></p>", "<p a=b></p>", "<p a=\"1\" a=\"2\"></p>", "a & b", "a > b", "<P></P>"})
    CHECK_FALSE_MESSAGE(parse_page(page), page);
  CHECK_FALSE(testing::is_self_contained("<style>p { background: url(x) }</style>"));
  CHECK_FALSE(testing::is_self_contained("<p onclick=\"f()\"></p>"));
}

TEST_CASE("each plotted series is what the run's logs say, number by number, and is drawn where the axes say") {
  for (const char* step : {"sft", "reward", "ppo"}) {
    CAPTURE(step);
    const testing::RunFiles files;
    write_run(files.file("run"), step);
    const std::string page = read_file(files.file("run/report.html"));
    CHECK(testing::is_self_contained(page));
    std::map<std::pair<std::string, std::string>, PlottedSeries> by_name;
    for (const PlottedSeries& series : plotted_series(page)) {
      CAPTURE(series.figure);
      CAPTURE(series.label);
      CHECK(series.placed);
      CHECK_FALSE(series.points.empty());
      if (series.file != "samples.jsonl") CHECK(series.points == logged_points(files.file("run"), series));
      by_name[{series.figure, series.label}] = series;
    }
    for (const PlotSpec& plot : standard_plots(step))
      for (const PlotSpec::Series& series : plot.series) {
        CAPTURE(plot.title);
        CAPTURE(series.label);
        REQUIRE(by_name.contains({plot.title, series.label}));
        CHECK(by_name[{plot.title, series.label}].y_name == series.name);
      }
    CHECK(contains(page, "1 of 12 values are not finite and are not drawn"));
  }
}

TEST_CASE("a run's report has its settings, input hashes and memory plan") {
  const testing::RunFiles files;
  write_run(files.file("run"), "sft");
  const std::string html = read_file(files.file("run/report.html"));
  CHECK(contains(html, "<td>lr</td><td class=\"number\">1e-05</td>"));
  CHECK(contains(html, "<td>data.jsonl</td><td>0123abcd</td>"));
  CHECK(contains(html, "memory plan</pre>"));
}

TEST_CASE("plots of metrics that exist are drawn and others are left out") {
  const std::string html = render_report(small_report());
  CHECK(count(html, "<svg") == 1);
  CHECK(contains(html, "aria-label=\"Loss\""));
  const std::vector<PlottedSeries> series = plotted_series(html);
  REQUIRE(series.size() == 2);
  CHECK(series[0].points.back() == std::pair{4.0, 1.0});
  CHECK(series[1].points == testing::Points{{0, 5.5}, {4, 1.25}});
  CHECK_FALSE(contains(html, "Perplexity"));
}

TEST_CASE("a metric that is never finite has a note and no plot, and one value is a plot") {
  ReportInput input{.title = "t", .step = "sft", .plots = standard_plots("sft")};
  input.metrics = columns({metric_line(1, "sft/loss", "nan"), metric_line(1, "lr", 1e-5)});
  const std::string html = render_report(input);
  CHECK(contains(html, "1 of 1 values are not finite"));
  REQUIRE(plotted_series(html).size() == 1);
  CHECK(plotted_series(html)[0].points == testing::Points{{1, 1e-5}});
  CHECK(plotted_series(html)[0].placed);
}

TEST_CASE("held-out figures before and after training are a table") {
  CHECK(
      contains(render_report(small_report()),
               "<tr><th>figure</th><th>step 0</th><th>step 4</th></tr>\n<tr><td>loss</td><td class=\"number\">5.5</td>"
               "<td class=\"number\">1.25</td></tr>"));
}

TEST_CASE("fixed prompts of ppo are shown for the best, the worst and a random change, and all of them on request") {
  ReportInput input{.title = "ppo", .step = "ppo"};
  for (const int64_t step : {0, 4, 9})
    for (int64_t index = 0; index < 20; ++index) {
      Json sample = text_sample(step, index, "prompt <" + std::to_string(index) + ">", "r" + std::to_string(step));
      sample.set("score", step == 0 ? 0.0 : static_cast<double>(index) - 5).set("kl", 0.5).set("finish", "end");
      input.samples.push_back(sample);
    }
  const std::string html = render_report(input);
  CHECK(contains(html, "Best change of the score, +14"));
  CHECK(contains(html, "Worst change of the score, -5"));
  CHECK(contains(html, "prompt &lt;19&gt;"));
  CHECK(contains(html, "score 14, kl 0.5, finish end"));
  CHECK(contains(html, "All 20"));
  CHECK(count(html, "<h3>step 9</h3>") == 23);
  CHECK_FALSE(contains(html, "<h3>step 4</h3>"));
  CHECK(parse_page(html));
}

TEST_CASE("of sft the best change of a held-out record is the lowest") {
  const std::vector<Json> samples = {
      text_sample(0, 0, "p", "r").set("loss", 2.0), text_sample(0, 1, "p", "r").set("loss", 2.0),
      text_sample(5, 0, "p", "r").set("loss", 1.0), text_sample(5, 1, "p", "r").set("loss", 4.0)};
  const std::string html = samples_section("sft", samples);
  CHECK(contains(html, "Best change of the loss, -1"));
  CHECK(contains(html, "Worst change of the loss, +2"));
  CHECK(samples_section("sft", {}).empty());
}

TEST_CASE("pairs of a reward model are shown by margin and plotted, those of the latest step alone, all escaped") {
  std::vector<Json> samples = {pair_sample(0, 9.0, 1, 3).set("step", 3), pair_sample(0, 1.0, 3, 5),
                               pair_sample(1, 4.0, 1, 4), pair_sample(2, "nan", 1, 4)};
  const std::string html = samples_section("reward", samples);
  CHECK(contains(html, "Held-out pairs at step 7"));
  CHECK(contains(html, "Lowest margin, -inf"));
  CHECK(contains(html, "Highest margin, +3"));
  CHECK(contains(html, "Human: &lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;co&quot;"));
  CHECK(parse_page(html));
  const std::vector<Figure> figures = sample_figures("reward", samples);
  REQUIRE(figures.size() == 3);
  const std::vector<PlottedSeries> series = plotted_series(figure_grid(figures));
  REQUIRE(series.size() == 4);
  CHECK(series[2].points == testing::Points{{5, 1}, {4, 4}});
  CHECK(series[3].points == testing::Points{{6, 3}, {5, 1}, {5, 1}});
}

TEST_CASE("bars of the margin histogram hold every pair once and never both signs") {
  const std::vector<double> margins = {-1.0, -0.01, 0.0, 0.01, 0.5, 2.0, 2.0};
  const Figure figure = margin_histogram(margins);
  double sum = 0, left_of_zero = 0;
  for (const auto& [middle, height] : figure.series.at(0).points) {
    sum += height;
    if (middle < 0) left_of_zero += height;
  }
  CHECK(sum == 7);
  CHECK(left_of_zero == 2);
  CHECK(margin_histogram({}).series.empty());
}

TEST_CASE("accuracy by margin is that of each tenth by size of the margin") {
  std::vector<double> margins;
  for (int i = 1; i <= 20; ++i) margins.push_back(i % 2 == 0 || i > 10 ? i : -i);
  const Figure figure = accuracy_by_margin(margins);
  REQUIRE(figure.series.at(0).points.size() == 10);
  CHECK(figure.series[0].points[0] == std::pair{1.5, 0.5});
  CHECK(figure.series[0].points[9] == std::pair{19.5, 1.0});
  CHECK(accuracy_by_margin({}).series.empty());
}

TEST_CASE("dropped records are listed by source and class with the first one") {
  DropCounts counts;
  counts.records = 200;
  counts.truncated = 3;
  counts.add(drop::empty_answer, "f:12");
  counts.add(drop::empty_answer, "f:13");
  const std::pair<std::string, const DropCounts*> sources[] = {{"training", &counts}};
  const HtmlTable table = dropped_records_table(sources);
  REQUIRE(table.rows.size() == 3);
  CHECK(table.rows[1] == std::vector<std::string>{"training", "dropped: empty answer", "2", "1.00 %", "f:12"});
  CHECK(table.rows[2][2] == "3");
}

}  // namespace tercet
