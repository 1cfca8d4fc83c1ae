// The plots of each step, which its report and comparisons of its runs share.
#pragma once

#include <string>
#include <vector>

namespace tercet {

// What a metric is measured in. Only runs that share it share an axis.
enum class Scale {
  common,            // the same in all runs
  score,             // of the reward model
  normalised_score,  // of the reward model, and normalised or not
  judge_score,       // of the judge
};

// A plot of a log: a curve per series, over the lines that have both the metric and x.
struct PlotSpec {
  struct Series {
    std::string label;
    std::string name;    // of the metric
    std::string x = {};  // empty: that of the plot
    bool held_out = false;
    Scale scale = Scale::common;
  };

  std::string title;
  std::string y_label;
  std::vector<Series> series;
  std::string x = "step";  // a metric's name; the plot of another one than the step is a cloud of points
  std::string x_label = "step";
  std::string log = "metrics.jsonl";
  bool wide_range = false;  // Figure::wide_range
  bool compared = true;     // whether its values can be compared between runs
};

// The plots of a step: "sft", "reward" or "ppo".
std::vector<PlotSpec> standard_plots(const std::string& step);

}  // namespace tercet
