// report.html: what a run did, as one HTML file with SVG plots that needs no network.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "train/html.h"
#include "train/run_logs.h"
#include "train/standard_plots.h"

namespace tercet {

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
