// report.html: what a run did, as one HTML file with SVG plots that needs no network.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "train/html.h"
#include "train/run_logs.h"
#include "train/svg_plot.h"

namespace tercet {

// A plot of a log: a curve per series, over the lines that have both the metric and x.
struct PlotSpec {
  struct Series {
    std::string label;
    std::string name;    // of the metric
    std::string x = {};  // empty: that of the plot
    bool held_out = false;
  };

  std::string title;
  std::string y_label;
  std::vector<Series> series;
  std::string x = "step";  // a metric's name; the plot of another one than the step is a cloud of points
  std::string x_label = "step";
  std::string log = "metrics.jsonl";
  bool wide_range = false;  // Figure::wide_range
};

// The plots of a step's report: "sft", "reward" or "ppo".
std::vector<PlotSpec> standard_plots(const std::string& step);

struct ReportInput {
  std::string title;
  std::string step;  // "sft", "reward" or "ppo"
  LogColumns metrics, timings;
  std::vector<Json> samples;    // the lines of samples.jsonl
  std::vector<PlotSpec> plots;  // those none of whose metrics exist are left out
  std::vector<HtmlTable> tables;
  std::string memory_plan;  // as printed
};

// The file's text. Everything from the input is escaped.
std::string render_report(const ReportInput& input);

// What a run knows beyond its files.
struct ReportExtras {
  std::vector<HtmlTable> tables;
  std::string memory_plan;
};

// Reads metrics.jsonl, timings.jsonl, samples.jsonl and config.toml of the run in `folder` and writes its report.html
// atomically.
void write_report(const std::string& folder, const ReportExtras& extras);

// Records of each source ("training", "held out") that were read, dropped by class, and truncated.
HtmlTable dropped_records_table(std::span<const std::pair<std::string, const DropCounts*>> sources);

}  // namespace tercet
