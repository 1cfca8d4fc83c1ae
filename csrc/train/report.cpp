#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "train/report_samples.h"
#include "train/run_folder.h"
#include "train/version.h"

namespace tercet {
namespace {

// The plot's figure; no series when none of its metrics exist.
Figure figure_of(const PlotSpec& plot, const LogColumns& log) {
  Figure figure{.title = plot.title, .x_label = plot.x_label, .y_label = plot.y_label, .wide_range = plot.wide_range};
  if (plot.x != "step") figure.style = Figure::Style::points;
  for (const PlotSpec::Series& spec : plot.series) {
    const std::string& x = spec.x.empty() ? plot.x : spec.x;
    Figure::Series series{.label = spec.label,
                          .points = log.points(x, spec.name),
                          .source = {plot.log, x, spec.name},
                          .dashed = spec.held_out};
    if (!series.points.empty()) figure.series.push_back(std::move(series));
  }
  return figure;
}

std::vector<Figure> all_figures(const ReportInput& input) {
  std::vector<Figure> figures;
  for (const PlotSpec& plot : input.plots)
    figures.push_back(figure_of(plot, plot.log == "timings.jsonl" ? input.timings : input.metrics));
  for (Figure& figure : sample_figures(input.step, input.samples)) figures.push_back(std::move(figure));
  return figures;
}

// Held-out figures of the first and the last evaluation.
HtmlTable held_out_table(const LogColumns& metrics) {
  std::vector<std::string> names;
  std::ranges::copy_if(metrics.names(), std::back_inserter(names),
                       [](const std::string& name) { return name.starts_with("eval/"); });
  std::vector<size_t> lines;
  for (size_t line = 0; line < metrics.lines(); ++line)
    if (std::ranges::any_of(names, [&](const std::string& name) { return metrics.has(line, name); }))
      lines.push_back(line);
  HtmlTable table{"Held out, before and after", {}, {}};
  if (lines.empty()) return table;
  const size_t first = lines.front(), last = lines.back();
  table.header = {"figure", "step " + short_number(metrics.at(first, "step")),
                  "step " + short_number(metrics.at(last, "step"))};
  const auto cell = [&](size_t line, const std::string& name) {
    return metrics.has(line, name) ? short_number(metrics.at(line, name)) : "";
  };
  for (const std::string& name : names)
    if (metrics.has(last, name)) table.rows.push_back({name.substr(5), cell(first, name), cell(last, name)});
  return table;
}

HtmlTable members_table(std::string title, std::vector<std::string> header, const Json& object) {
  HtmlTable table{std::move(title), std::move(header), {}};
  for (const auto& [name, value] : object.as_object())
    table.rows.push_back({name, value.is_string() ? value.as_string() : value.dump()});
  return table;
}

std::string percent_of(int64_t part, int64_t whole) {
  return whole == 0 ? "" : fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

std::string render_report(const ReportInput& input) {
  const double last = input.metrics.lines() == 0 ? 0 : input.metrics.at(input.metrics.lines() - 1, "step");
  std::string body =
      fmt::format("<h1>{}</h1>\n<p class=\"soft\">{}, {} steps, tercet {}</p>\n", escape_html(input.title),
                  escape_html(input.step), short_number(last), tercet_version());
  body += html_table(held_out_table(input.metrics));
  body += "<h2>Curves</h2>\n" + figure_grid(all_figures(input));
  body += samples_section(input.step, input.samples);
  for (const HtmlTable& table : input.tables) body += html_table(table);
  if (!input.memory_plan.empty())
    body += fmt::format("<h2>Memory plan</h2>\n<div class=\"panel scroll\"><pre class=\"wide\">{}</pre></div>\n",
                        escape_html(input.memory_plan));
  return html_page(input.title, body);
}

void write_report(const std::string& folder, const ReportExtras& extras) {
  const RunRecord record = read_run_record(folder);
  ReportInput input;
  input.step = record.step;
  const std::string name = std::filesystem::path(folder).lexically_normal().filename().string();
  input.title = fmt::format("{}: {}", record.step, name.empty() ? folder : name);
  input.metrics = LogColumns::read(folder, "metrics.jsonl");
  input.timings = LogColumns::read(folder, "timings.jsonl");
  for_each_log_line(folder, "samples.jsonl", [&](const Json& line) { input.samples.push_back(line); });
  input.plots = standard_plots(record.step);
  input.tables = extras.tables;
  input.tables.push_back(members_table("Settings", {"flag", "value"}, record.settings));
  input.tables.push_back(members_table("Inputs", {"file", "XXH3-128"}, record.input_hashes));
  input.memory_plan = extras.memory_plan;
  write_file_atomically(folder + "/report.html", render_report(input));
}

HtmlTable dropped_records_table(std::span<const std::pair<std::string, const DropCounts*>> sources) {
  HtmlTable table{"Records", {"source", "what", "count", "share", "first one"}, {}};
  for (const auto& [source, counts] : sources) {
    table.rows.push_back({source, "read", fmt::format("{}", counts->records), "", ""});
    if (counts->other_shares > 0)
      table.rows.push_back({source, "left to other steps", fmt::format("{}", counts->other_shares),
                            percent_of(counts->other_shares, counts->records), ""});
    for (const auto& [drop_class, count] : counts->by_class) {
      const auto first = counts->first_of_class.find(drop_class);
      table.rows.push_back({source, "dropped: " + drop_class, fmt::format("{}", count),
                            percent_of(count, counts->records),
                            first == counts->first_of_class.end() ? "" : first->second});
    }
    if (counts->truncated > 0)
      table.rows.push_back({source, "truncated sequences", fmt::format("{}", counts->truncated), "", ""});
  }
  return table;
}

}  // namespace tercet
