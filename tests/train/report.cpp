#include "train/report.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "base/file.h"
#include "train/run_folder.h"
#include "train/svg_plot.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

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

// Whether every element that is opened is closed in order; elements without contents are known.
bool is_well_formed(const std::string& html) {
  const std::regex tag(R"(<(/?)([a-z0-9]+)[^<>]*?(/?)>)");
  std::vector<std::string> open;
  for (std::sregex_iterator it(html.begin(), html.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[3] == "/" || name == "meta") continue;
    if ((*it)[1] == "/") {
      if (open.empty() || open.back() != name) return false;
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  return open.empty();
}

ReportInput small_report() {
  ReportInput input{.title = "sft: <run> & \"co\"", .step = "sft"};
  for (int64_t step = 0; step <= 4; ++step)
    input.metrics.push_back(metric_line(step, "sft/loss", 5.0 / (1.0 + static_cast<double>(step))));
  input.metrics.push_back(metric_line(0, "eval/loss", 5.5));
  input.metrics.push_back(metric_line(4, "eval/loss", 1.25));
  input.plots = standard_plots("sft");
  input.tables.push_back({"Settings", {"flag", "value"}, {{"data", "</table><script>alert(1)</script>"}}});
  input.memory_plan = "memory plan\n  sum 1 < 2";
  return input;
}

TEST_CASE("a report is one well-formed page without scripts or addresses, and escapes all that it is given") {
  const std::string html = render_report(small_report());
  CHECK(is_well_formed(html));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "http"));
  CHECK(contains(html, "sft: &lt;run&gt; &amp; &quot;co&quot;"));
  CHECK(contains(html, "&lt;/table&gt;&lt;script&gt;"));
  CHECK(contains(html, "sum 1 &lt; 2"));
  CHECK(contains(html, "prefers-color-scheme: dark"));
}

TEST_CASE("plots of metrics that exist are drawn and others are left out") {
  const std::string html = render_report(small_report());
  CHECK(count(html, "<svg") == 1);
  CHECK(contains(html, "aria-label=\"Loss\""));
  CHECK(contains(html, "training: 4, 1"));
  CHECK(contains(html, "held out: 4, 1.25"));
  CHECK_FALSE(contains(html, "Perplexity"));
}

TEST_CASE("held-out figures before and after training are a table") {
  const std::string html = render_report(small_report());
  CHECK(contains(
      html, "<tr><th>figure</th><th>step 0</th><th>step 4</th></tr>\n<tr><td>loss</td><td>5.5</td><td>1.25</td></tr>"));
}

TEST_CASE("each step has plots of all that its metrics tell") {
  for (const char* step : {"sft", "reward", "ppo"}) {
    ReportInput input{.title = step, .step = step, .plots = standard_plots(step)};
    Json line = Json::object();
    line.set("step", 1);
    for (const PlotSpec& plot : input.plots)
      for (const auto& [label, name] : plot.series) line.set(name, 0.5);
    input.metrics = {line};
    const std::string html = render_report(input);
    CHECK(count(html, "<svg") == input.plots.size());
    CHECK(is_well_formed(html));
  }
}

TEST_CASE("numbers that are not finite, and empty and flat series, do not break a plot") {
  Figure figure{.title = "t", .x_label = "x", .y_label = "y"};
  figure.series.push_back({"a", {{1, NAN}, {2, INFINITY}, {3, 4}}});
  figure.series.push_back({"b", {}});
  for (const Figure::Style style : {Figure::Style::line, Figure::Style::points, Figure::Style::bars}) {
    figure.style = style;
    const std::string svg = render_svg(figure);
    CHECK_FALSE(contains(svg, "nan,"));
    CHECK_FALSE(contains(svg, "\"nan\""));
    CHECK_FALSE(contains(svg, "\"inf\""));
    CHECK(is_well_formed(svg));
  }
  ReportInput input{
      .title = "t", .step = "sft", .metrics = {metric_line(1, "sft/loss", "nan")}, .plots = standard_plots("sft")};
  CHECK(count(render_report(input), "<svg") == 0);
}

TEST_CASE("long curves are thinned, keep their last point and say so") {
  ReportInput input{.title = "t", .step = "sft", .plots = standard_plots("sft")};
  for (int64_t step = 1; step <= 5000; ++step)
    input.metrics.push_back(metric_line(step, "sft/loss", static_cast<double>(step)));
  const std::string html = render_report(input);
  CHECK(contains(html, "one point in 3 is drawn"));
  CHECK(html.size() < 100'000);
}

TEST_CASE("a range that doubles cannot divide has few ticks or none") {
  CHECK(nice_ticks(1e18, std::nextafter(1e18, 2e18), 5).size() <= 11);
}

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(nice_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(nice_ticks(0.95, 3.1, 5) == std::vector<double>{1, 1.5, 2, 2.5, 3});
  for (const double low : {-1e9, -3.7, 0.0, 1e-7, 123.456})
    for (const double width : {1e-3, 0.3, 7.0, 1e6}) {
      const std::vector<double> ticks = nice_ticks(low, low + width, 5);
      CHECK(ticks.size() >= 2);
      CHECK(ticks.size() <= 8);
    }
}

TEST_CASE("the best, the worst and a random change of the fixed prompts are shown, and all of them on request") {
  ReportInput input{.title = "ppo", .step = "ppo"};
  for (const int64_t step : {0, 9})
    for (int64_t index = 0; index < 20; ++index) {
      Json sample = Json::object();
      sample.set("step", step).set("index", index).set("prompt", "prompt <" + std::to_string(index) + ">");
      sample.set("response", "r" + std::to_string(step)).set("kl", 0.5).set("tokens", 3).set("terminated", true);
      input.samples.push_back(sample.set("score", step == 0 ? 0.0 : static_cast<double>(index) - 5));
    }
  const std::string html = render_report(input);
  CHECK(contains(html, "Best change of the score, +14"));
  CHECK(contains(html, "Worst change of the score, -5"));
  CHECK(contains(html, "prompt &lt;19&gt;"));
  CHECK(contains(html, "All 20 prompts"));
  CHECK(count(html, "<h3>step 9</h3>") == 23);
  CHECK(is_well_formed(html));
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
  const ReportTable table = dropped_records_table(sources);
  REQUIRE(table.rows.size() == 3);
  CHECK(table.rows[1] == std::vector<std::string>{"training", "dropped: empty answer", "2", "1.00 %", "f:12"});
  CHECK(table.rows[2][2] == "3");
}

TEST_CASE("a run's report is made of its files") {
  char name[] = "/tmp/tercet-report-XXXXXX";
  const std::string path = ::mkdtemp(name);
  {
    RunFolder folder({.path = path, .step = "sft"});
    Json settings = Json::object(), hashes = Json::object();
    folder.write_or_check_config(settings.set("lr", 1e-5), hashes.set("data.jsonl", "0123abcd"));
    folder.metrics(metric_line(1, "sft/loss", 2.5));
    write_report(path, {.memory_plan = "memory plan"});
  }
  const std::string html = read_file(path + "/report.html");
  CHECK(contains(html, "training: 1, 2.5"));
  CHECK(contains(html, "<td>lr</td><td>1e-05</td>"));
  CHECK(contains(html, "<td>data.jsonl</td><td>0123abcd</td>"));
  fs::remove_all(path);
}

}  // namespace
}  // namespace tercet
