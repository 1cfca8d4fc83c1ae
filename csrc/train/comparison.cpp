#include "train/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "train/compared_runs.h"
#include "train/standard_plots.h"

namespace tercet {
namespace {

// A training series of a plot and the held-out one beside it; either may be missing.
struct Metric {
  std::string title, y_label;
  std::string training, held_out;  // names; one may be empty
  Scale scale = Scale::common;
  bool wide_range = false;
  std::string log;
};

// The title of one of the `count` metrics of a plot.
std::string title_of(const PlotSpec& plot, const std::string& label, size_t count) {
  return count == 1 || label == "training" || label == "held out" ? plot.title : plot.title + ", " + label;
}

void add_metrics(const PlotSpec& plot, std::vector<Metric>& metrics) {
  std::vector<PlotSpec::Series> training, held_out;
  for (const PlotSpec::Series& series : plot.series) (series.held_out ? held_out : training).push_back(series);
  const size_t count = std::max(training.size(), held_out.size());
  for (size_t i = 0; i < count; ++i) {
    const PlotSpec::Series& first = i < training.size() ? training[i] : held_out[i];
    metrics.push_back({.title = title_of(plot, first.label, count),
                       .y_label = plot.y_label,
                       .training = i < training.size() ? training[i].name : "",
                       .held_out = i < held_out.size() ? held_out[i].name : "",
                       .scale = first.scale,
                       .wide_range = plot.wide_range,
                       .log = plot.log});
  }
}

std::vector<Metric> metrics_of(const std::string& step) {
  std::vector<Metric> metrics;
  for (const PlotSpec& plot : standard_plots(step))
    if (plot.compared && plot.x == "step") add_metrics(plot, metrics);
  return metrics;
}

// What curves are drawn against.
struct Abscissa {
  std::string title, label;
  std::string training, held_out;  // names
};

std::vector<Abscissa> abscissas_of(const std::string& step) {
  std::vector<Abscissa> all = {{"Against steps", "step", "step", "step"},
                               {"Against tokens", "tokens seen", "tokens_seen", "tokens_seen"}};
  if (step == "ppo") all.push_back({"Against KL", "KL, nats per sequence", "objective/kl_seq", "eval/kl_seq"});
  return all;
}

std::string reward_rule_of(const ComparedRun& run) {
  const Json* rule = run.record.settings.find("reward-rule");
  return rule == nullptr ? "" : rule->as_string();
}

// Of the file that a setting names.
std::string short_hash(const ComparedRun& run, const std::string& setting) {
  const std::vector<InputFile> files = input_files(run.record, setting);
  return files.empty() ? "none" : files[0].hash.substr(0, 8);
}

// Runs with equal keys share an axis for what is measured in the scale. Empty: the run measures nothing in it.
std::string axis_key(const ComparedRun& run, Scale scale) {
  if (scale == Scale::common || run.record.step != "ppo") return "";
  std::string key = scale == Scale::judge_score ? "" : reward_rule_of(run);
  for (const InputFile& file : input_files(run.record, scale == Scale::judge_score ? "judge-model" : "reward-model"))
    key += file.hash;
  if (scale == Scale::judge_score) return key;
  if (key.empty()) key = run.path;  // a model that is not known is nobody else's
  const Json* normalised = run.record.settings.find("normalize-reward");
  if (scale == Scale::normalised_score && normalised != nullptr) key += normalised->dump();
  return key;
}

bool shares_axis(const std::vector<ComparedRun>& runs, Scale scale) {
  std::set<std::string> keys;
  for (const ComparedRun& run : runs)
    if (const std::string key = axis_key(run, scale); !key.empty()) keys.insert(key);
  return keys.size() <= 1;
}

void add_series(Figure& figure, const ComparedRun& run, size_t color, const Metric& metric, const Abscissa& abscissa) {
  const LogColumns& log = metric.log == "timings.jsonl" ? run.timings : run.metrics;
  for (const bool held_out : {false, true}) {
    const std::string& y = held_out ? metric.held_out : metric.training;
    const std::string& x = held_out ? abscissa.held_out : abscissa.training;
    Figure::Series series{.label = run.label + (held_out ? ", held out" : ""),
                          .points = log.points(x, y),
                          .source = {metric.log, x, y, run.label},
                          .color = static_cast<int>(color),
                          .dashed = held_out};
    if (!y.empty() && x != y && !series.points.empty()) figure.series.push_back(std::move(series));
  }
}

std::vector<Figure> figures_of(const std::vector<ComparedRun>& runs, const Metric& metric, const Abscissa& abscissa) {
  const Figure blank{.title = metric.title,
                     .x_label = abscissa.label,
                     .y_label = metric.y_label,
                     .style = abscissa.held_out == "eval/kl_seq" ? Figure::Style::points : Figure::Style::line,
                     .wide_range = metric.wide_range};
  std::vector<Figure> figures;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i == 0 || !shares_axis(runs, metric.scale)) figures.push_back(blank);
    if (!shares_axis(runs, metric.scale)) figures.back().title += ": " + runs[i].label;
    add_series(figures.back(), runs[i], i, metric, abscissa);
  }
  return figures;
}

std::vector<Comparison::Section> sections_of(const std::vector<ComparedRun>& runs) {
  std::vector<Comparison::Section> sections;
  for (const Abscissa& abscissa : abscissas_of(runs[0].record.step)) {
    sections.push_back({abscissa.title, {}});
    for (const Metric& metric : metrics_of(runs[0].record.step))
      for (Figure& figure : figures_of(runs, metric, abscissa)) sections.back().figures.push_back(std::move(figure));
  }
  return sections;
}

std::vector<std::string> notes_of(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> notes;
  const auto differ = [&](const std::string& what, const std::function<std::string(const ComparedRun&)>& name_of) {
    std::string list;
    for (const ComparedRun& run : runs)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", run.label, name_of(run));
    notes.push_back(fmt::format(
        "The {} differ ({}): their scores have no common axis, and each run has plots of its own.", what, list));
  };
  if (!shares_axis(runs, Scale::score))
    differ("rewards", [](const ComparedRun& run) {
      const std::string rule = reward_rule_of(run);
      return rule.empty() ? short_hash(run, "reward-model") : rule;
    });
  else if (!shares_axis(runs, Scale::normalised_score))
    notes.emplace_back("Only some of the runs normalise their rewards: normalised scores have no common axis.");
  if (!shares_axis(runs, Scale::judge_score))
    differ("judges", [](const ComparedRun& run) { return short_hash(run, "judge-model"); });
  return notes;
}

std::vector<std::string> header_of(const std::vector<ComparedRun>& runs, const std::string& first) {
  std::vector<std::string> header = {first};
  for (const ComparedRun& run : runs) header.push_back(run.label);
  return header;
}

std::string last_value(const LogColumns& log, const std::string& name) {
  for (size_t line = log.lines(); line-- > 0;)
    if (log.has(line, name)) return short_number(log.at(line, name));
  return "";
}

HtmlTable last_figures(const std::vector<ComparedRun>& runs) {
  HtmlTable table{"Last figures", header_of(runs, "figure"), {}};
  const auto add = [&](const std::string& heading, const std::string& name, bool timing) {
    if (name.empty()) return;
    std::vector<std::string> row = {heading};
    for (const ComparedRun& run : runs) row.push_back(last_value(timing ? run.timings : run.metrics, name));
    if (std::any_of(row.begin() + 1, row.end(), [](const std::string& cell) { return !cell.empty(); }))
      table.rows.push_back(std::move(row));
  };
  add("step", "step", false);
  add("tokens", "tokens_seen", false);
  for (const Metric& metric : metrics_of(runs[0].record.step)) {
    const std::string own = shares_axis(runs, metric.scale) ? "" : " (own scale)";
    add(metric.title + own, metric.training, metric.log == "timings.jsonl");
    add(metric.title + ", held out" + own, metric.held_out, false);
  }
  return table;
}

std::vector<std::string> setting_names(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const ComparedRun& run : runs)
    for (const auto& [name, value] : run.record.settings.as_object())
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

std::string setting_text(const Json* value) {
  return value == nullptr ? "-" : value->is_string() ? value->as_string() : value->dump();
}

HtmlTable differing_settings(const std::vector<ComparedRun>& runs) {
  HtmlTable table{"Settings that differ", header_of(runs, "flag"), {}};
  const auto add = [&](const std::string& name, const auto& value_of) {
    std::vector<std::string> row = {name};
    for (const ComparedRun& run : runs) row.push_back(value_of(run));
    if (std::any_of(row.begin() + 2, row.end(), [&](const std::string& cell) { return cell != row[1]; }))
      table.rows.push_back(std::move(row));
  };
  for (const std::string& name : setting_names(runs))
    add(name, [&](const ComparedRun& run) { return setting_text(run.record.settings.find(name)); });
  add("version of tercet", [](const ComparedRun& run) { return run.record.version; });
  return table;
}

std::vector<std::string> hashes_of(const RunRecord& record, const std::string& setting) {
  std::vector<std::string> hashes;
  for (const InputFile& file : input_files(record, setting)) hashes.push_back(file.hash);
  return hashes;
}

HtmlTable differing_inputs(const std::vector<ComparedRun>& runs) {
  HtmlTable table{"Inputs whose hashes differ", header_of(runs, "flag"), {}};
  for (const std::string& name : setting_names(runs)) {
    const std::vector<std::string> first = hashes_of(runs[0].record, name);
    if (std::ranges::all_of(runs, [&](const ComparedRun& run) { return hashes_of(run.record, name) == first; }))
      continue;
    std::vector<std::string> row = {name};
    for (const ComparedRun& run : runs) {
      std::string cell;
      for (const InputFile& file : input_files(run.record, name))
        cell += fmt::format("{}{} {}", cell.empty() ? "" : ", ", file.hash.substr(0, 8), file.path);
      row.push_back(cell.empty() ? "-" : cell);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

Comparison compare_runs(const std::vector<std::string>& folders) {
  const std::vector<ComparedRun> runs = read_compared_runs(folders);
  Comparison comparison{.step = runs[0].record.step, .notes = notes_of(runs), .sections = sections_of(runs)};
  for (const ComparedRun& run : runs) comparison.runs.push_back({run.label, run.path});
  for (const HtmlTable& table : {last_figures(runs), differing_settings(runs), differing_inputs(runs)})
    if (!table.rows.empty()) comparison.tables.push_back(table);
  return comparison;
}

}  // namespace tercet
