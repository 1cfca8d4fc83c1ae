// Runs of one step side by side: their figures, curves, settings and inputs.
#pragma once

#include <string>
#include <vector>

#include "train/html.h"
#include "train/svg_plot.h"

namespace tercet {

// Scores of different reward models (by the hash of the file) have no common axis: each run then has plots of its own
// for them, and a note says so. The same holds for judges, and for normalised scores when one run does not normalise.
// Margins of `reward` runs are log-odds whatever the model and share an axis.
struct Comparison {
  struct Run {
    std::string label;  // as much of the path's end as tells the runs apart
    std::string path;
  };
  struct Section {
    std::string title;
    std::vector<Figure> figures;
  };

  std::string step;  // "sft", "reward" or "ppo"
  std::vector<Run> runs;
  std::vector<std::string> notes;
  std::vector<HtmlTable> tables;  // last figures, settings that differ, inputs whose hashes differ
  std::vector<Section> sections;  // curves against steps, tokens and, of ppo, KL
};

constexpr size_t kMostComparedRuns = kFigureColors;

// Reads the runs in the folders; runs that go on, or that were stopped, are read as far as they are. Throws
// Error(Fault::input): fewer than two folders or more than kMostComparedRuns, one that holds no run or is given twice,
// runs of different steps, a log that cannot be read.
Comparison compare_runs(const std::vector<std::string>& folders);

// The page's text, as render_report() makes it.
std::string comparison_page(const Comparison& comparison);

// Notes and tables for a terminal.
std::string comparison_text(const Comparison& comparison);

}  // namespace tercet
