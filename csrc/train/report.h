// report.html: what a run did, as one HTML file with SVG plots that needs no network.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "data/dataset.h"

namespace tercet {

// A plot of metrics.jsonl: a curve per series, over the lines that have both the metric and `x`.
struct PlotSpec {
  std::string title;
  std::string y_label;
  std::vector<std::pair<std::string, std::string>> series;  // label and name of the metric
  std::string x = "step";                                   // a metric's name
  std::string x_label = "step";
};

// A plot of numbers of its own.
struct Figure {
  enum class Style { line, points, bars };
  struct Series {
    std::string label;
    std::vector<std::pair<double, double>> points;  // of bars: the middle of the bar and its height
  };

  std::string title, x_label, y_label;
  Style style = Style::line;
  std::vector<Series> series;
  double bar_width = 1;  // of bars, in units of x
};

struct ReportTable {
  std::string title;
  std::vector<std::string> header;  // may be empty
  std::vector<std::vector<std::string>> rows;
};

struct ReportInput {
  std::string title;
  std::string step;             // "sft", "reward" or "ppo"
  std::vector<Json> metrics;    // the lines of metrics.jsonl
  std::vector<PlotSpec> plots;  // those none of whose metrics exist are left out
  std::vector<Figure> figures;
  std::vector<ReportTable> tables;
  std::vector<Json> samples;  // the lines of samples.jsonl (ppo)
  std::string memory_plan;    // as printed
};

// The file's text. Everything from the input is escaped. Curves of more than 2,000 points are thinned, and say so.
std::string render_report(const ReportInput& input);

// The plots of a step's report: "sft", "reward" or "ppo".
std::vector<PlotSpec> standard_plots(const std::string& step);

// What a run knows beyond its files.
struct ReportExtras {
  std::vector<Figure> figures;
  std::vector<ReportTable> tables;
  std::string memory_plan;
};

// Reads metrics.jsonl, samples.jsonl and config.toml of the run in `folder` and writes its report.html atomically.
void write_report(const std::string& folder, const ReportExtras& extras);

// Records of each source ("training", "held out") that were read, dropped by class, and truncated.
ReportTable dropped_records_table(std::span<const std::pair<std::string, const DropCounts*>> sources);

// Of a reward model on pairs. `margins`: score of chosen minus that of rejected.
Figure margin_histogram(std::span<const double> margins);
// Share of margins above 0 among the pairs of each tenth by |margin|, against the mean |margin| of the tenth.
Figure accuracy_by_margin(std::span<const double> margins);
// One point per answer: its tokens and its score.
Figure score_against_length(std::span<const std::pair<double, double>> chosen,
                            std::span<const std::pair<double, double>> rejected);

}  // namespace tercet
