#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/rng.h"
#include "data/records.h"
#include "train/run_folder.h"
#include "train/svg_plot.h"
#include "train/version.h"

namespace tercet {
namespace {

constexpr const char* kStyle = R"(
:root { --ink: #1d2430; --soft: #5b6676; --line: #d9dee6; --paper: #ffffff; --panel: #f6f8fa;
  --c0: #2563c9; --c1: #d2601a; --c2: #20865a; --c3: #a13fa8; --c4: #8a6d00; --c5: #c02f4b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b5; --line: #343c48; --paper: #14181e;
  --panel: #1c222b; --c0: #6ea8ff; --c1: #ff9f5a; --c2: #56c596; --c3: #dd86e4; --c4: #e2c14d; --c5: #ff7f96; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 1240px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: .95rem; margin: .2rem 0 .4rem; } .soft { color: var(--soft); }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .tick { fill: var(--soft); font-size: 11px; }
svg .label { fill: var(--soft); } svg .title { font-size: 14px; font-weight: 600; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .mark { fill-opacity: .75; } .bar { fill-opacity: .8; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); } .curve.c2 { stroke: var(--c2); }
.curve.c3 { stroke: var(--c3); } .curve.c4 { stroke: var(--c4); } .curve.c5 { stroke: var(--c5); }
:is(.mark, .bar).c0 { fill: var(--c0); } :is(.mark, .bar).c1 { fill: var(--c1); } :is(.mark, .bar).c2 { fill: var(--c2); }
:is(.mark, .bar).c3 { fill: var(--c3); } :is(.mark, .bar).c4 { fill: var(--c4); } :is(.mark, .bar).c5 { fill: var(--c5); }
table { border-collapse: collapse; font-size: .88rem; } .scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }
.sample { margin-bottom: 1rem; } .answers { display: grid; gap: .8rem; margin-top: .6rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
summary { cursor: pointer; color: var(--soft); margin-bottom: .6rem; }
)";

bool is_finite_number(const Json* value) {
  return value != nullptr && value->is_number() && std::isfinite(value->as_double());
}

std::string short_number(const Json& value) {
  if (value.is_number() && !value.is_integer()) return fmt::format("{:.6g}", value.as_double());
  return value.is_string() ? value.as_string() : value.dump();
}

// The plot's figure; no series when none of its metrics exist.
Figure figure_of(const PlotSpec& plot, const std::vector<Json>& metrics) {
  Figure figure{.title = plot.title, .x_label = plot.x_label, .y_label = plot.y_label};
  if (plot.x != "step") figure.style = Figure::Style::points;
  for (const auto& [label, name] : plot.series) {
    Figure::Series series{label, {}};
    for (const Json& line : metrics)
      if (is_finite_number(line.find(name)) && is_finite_number(line.find(plot.x)))
        series.points.emplace_back(line.at(plot.x).as_double(), line.at(name).as_double());
    if (!series.points.empty()) figure.series.push_back(std::move(series));
  }
  return figure;
}

std::string panel(const Figure& figure) {
  std::string out = "<div class=\"panel\">" + render_svg(figure);
  for (const Figure::Series& series : figure.series)
    if (series.points.size() > 2000)
      out += fmt::format("<p class=\"soft\">{}: one point in {} is drawn.</p>", escape_html(series.label),
                         (series.points.size() + 1999) / 2000);
  return out + "</div>\n";
}

std::string plots_section(const ReportInput& input) {
  std::string panels;
  for (const PlotSpec& plot : input.plots)
    if (const Figure figure = figure_of(plot, input.metrics); !figure.series.empty()) panels += panel(figure);
  for (const Figure& figure : input.figures)
    if (!figure.series.empty()) panels += panel(figure);
  return panels.empty() ? "" : "<section class=\"plots\">\n" + panels + "</section>\n";
}

std::string cells(const std::vector<std::string>& row, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : row) out += fmt::format("<{0}>{1}</{0}>", tag, escape_html(cell));
  return out + "</tr>\n";
}

std::string table_section(const ReportTable& table) {
  if (table.rows.empty()) return "";
  std::string out = fmt::format("<h2>{}</h2>\n<div class=\"scroll\"><table>\n", escape_html(table.title));
  if (!table.header.empty()) out += cells(table.header, "th");
  for (const auto& row : table.rows) out += cells(row, "td");
  return out + "</table></div>\n";
}

// Held-out figures of the first and the last evaluation.
ReportTable held_out_table(const std::vector<Json>& metrics) {
  const auto is_evaluation = [](const Json& line) {
    return std::ranges::any_of(line.as_object(), [](const auto& member) { return member.first.starts_with("eval/"); });
  };
  const auto first = std::ranges::find_if(metrics, is_evaluation);
  const auto last = std::find_if(metrics.rbegin(), metrics.rend(), is_evaluation);
  ReportTable table{"Held out, before and after", {}, {}};
  if (first == metrics.end()) return table;
  table.header = {"figure", "step " + short_number(first->at("step")), "step " + short_number(last->at("step"))};
  for (const auto& [name, value] : last->as_object()) {
    if (!name.starts_with("eval/")) continue;
    const Json* before = first->find(name);
    table.rows.push_back({name.substr(5), before == nullptr ? "" : short_number(*before), short_number(value)});
  }
  return table;
}

// One fixed prompt's samples before and after training.
struct SamplePair {
  const Json* before;
  const Json* after;

  double change() const { return after->at("score").as_double() - before->at("score").as_double(); }
};

std::vector<SamplePair> sample_pairs(const std::vector<Json>& samples) {
  std::map<int64_t, SamplePair> by_index;
  for (const Json& sample : samples) {
    const auto [entry, added] = by_index.try_emplace(sample.at("index").as_int(), SamplePair{&sample, &sample});
    if (!added) entry->second.after = &sample;
  }
  std::vector<SamplePair> pairs;
  for (const auto& [index, pair] : by_index) pairs.push_back(pair);
  return pairs;
}

std::string answer(const Json& sample) {
  std::string figures;
  for (const char* name : {"score", "kl", "tokens", "terminated"})
    if (const Json* value = sample.find(name))
      figures += fmt::format("{}{} {}", figures.empty() ? "" : " &middot; ", name, escape_html(short_number(*value)));
  return fmt::format("<div><h3>step {}</h3><pre>{}</pre><p class=\"soft\">{}</p></div>\n",
                     escape_html(short_number(sample.at("step"))), escape_html(sample.at("response").as_string()),
                     figures);
}

std::string sample_block(const std::string& heading, const SamplePair& pair) {
  return fmt::format(
      "<div class=\"panel sample\"><h3>{}</h3><pre class=\"soft\">{}</pre><div class=\"answers\">{}{}</div></div>\n",
      escape_html(heading), escape_html(pair.before->at("prompt").as_string()), answer(*pair.before),
      answer(*pair.after));
}

std::string samples_section(const std::vector<Json>& samples) {
  const std::vector<SamplePair> pairs = sample_pairs(samples);
  if (pairs.empty()) return "";
  const auto by_change = [](const SamplePair& a, const SamplePair& b) { return a.change() < b.change(); };
  const SamplePair& best = *std::ranges::max_element(pairs, by_change);
  const SamplePair& worst = *std::ranges::min_element(pairs, by_change);
  const RandomStream random(0, RandomPurpose::shuffle);
  const SamplePair& any = pairs[random.below(pairs.size(), pairs.size())];
  std::string out = "<h2>Fixed prompts, before and after</h2>\n";
  out += sample_block(fmt::format("Best change of the score, {:+.4g}", best.change()), best);
  out += sample_block(fmt::format("Worst change of the score, {:+.4g}", worst.change()), worst);
  out += sample_block(fmt::format("A random one, {:+.4g}", any.change()), any);
  out += fmt::format("<details><summary>All {} prompts</summary>\n", pairs.size());
  for (const SamplePair& pair : pairs)
    out += sample_block(fmt::format("Prompt {}, {:+.4g}", pair.before->at("index").as_int(), pair.change()), pair);
  return out + "</details>\n";
}

ReportTable members_table(std::string title, std::vector<std::string> header, const Json& object) {
  ReportTable table{std::move(title), std::move(header), {}};
  for (const auto& [name, value] : object.as_object())
    table.rows.push_back({name, value.is_string() ? value.as_string() : value.dump()});
  return table;
}

// The lines of a log; none when the run has not written it.
std::vector<Json> log_lines(const std::string& path) {
  std::vector<Json> lines;
  if (std::filesystem::exists(path))
    for_each_json_line(path, [&](const Json& line, const std::string&) { lines.push_back(line); });
  return lines;
}

std::string percent_of(int64_t part, int64_t whole) {
  return whole == 0 ? "" : fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

std::vector<PlotSpec> standard_plots(const std::string& step) {
  if (step == "sft")
    return {{"Loss", "nats per token", {{"training", "sft/loss"}, {"held out", "eval/loss"}}},
            {"Perplexity", "perplexity", {{"training", "sft/ppl"}, {"held out", "eval/ppl"}}},
            {"Learning rate", "learning rate", {{"rate", "lr"}}},
            {"Gradient norm", "2-norm before clipping", {{"norm", "grad_norm"}}},
            {"Entropy", "nats per token", {{"training", "sft/entropy"}, {"held out", "eval/entropy"}}}};
  if (step == "reward")
    return {{"Loss", "nats per pair", {{"training", "rm/loss"}, {"held out", "eval/loss"}}},
            {"Accuracy",
             "share of pairs",
             {{"training", "rm/acc"}, {"held out", "eval/accuracy"}, {"shorter wins", "eval/shorter_wins"}}},
            {"Margin", "score", {{"training", "rm/margin_mean"}, {"held out", "eval/margin"}}},
            {"Scores", "score", {{"chosen", "rm/chosen_mean"}, {"rejected", "rm/rejected_mean"}}},
            {"Learning rate", "learning rate", {{"rate", "lr"}}},
            {"Gradient norm", "2-norm before clipping", {{"norm", "grad_norm"}}}};
  return {{"Score", "score", {{"training", "objective/score"}, {"held out", "eval/score"}}},
          {"Normalised score",
           "standard deviations",
           {{"training", "objective/score_normalized"}, {"held out", "eval/score_normalized"}}},
          {"Judge's score", "score", {{"held out", "eval/judge_score"}}},
          {"Win rate against the reference",
           "share of prompts",
           {{"reward model", "eval/win_rate"}, {"judge", "eval/judge_win_rate"}}},
          {"Reward with KL penalty", "reward per sequence", {{"reward", "objective/rlhf_reward"}}},
          {"KL", "nats per sequence", {{"training", "objective/kl_seq"}, {"held out", "eval/kl_seq"}}},
          {"Score against KL", "score", {{"training", "objective/score"}}, "objective/kl_seq", "KL, nats per sequence"},
          {"KL coefficient", "beta", {{"beta", "objective/kl_coef"}}},
          {"Response length", "tokens", {{"training", "response/len_mean"}, {"held out", "eval/len_mean"}}},
          {"Ended responses", "share", {{"training", "response/eos_rate"}, {"held out", "eval/eos_rate"}}},
          {"Entropy", "nats per token", {{"training", "policy/entropy"}, {"held out", "eval/entropy"}}},
          {"Clip fraction", "share of tokens", {{"below", "policy/clipfrac_low"}, {"above", "policy/clipfrac_high"}}},
          {"Explained variance", "share", {{"critic", "value/explained_var"}}},
          {"Losses", "loss", {{"policy", "loss/policy"}, {"value", "loss/value"}, {"ptx", "loss/ptx"}}},
          {"Approximate KL of the updates", "nats per token", {{"policy", "policy/approxkl"}}},
          {"Decode path against training path",
           "probability",
           {{"mean", "rollout/probs_diff_mean"}, {"largest", "rollout/probs_diff_max"}}},
          {"Repetition",
           "share of n-grams",
           {{"repeated 3-grams", "response/repetition"}, {"distinct 2-grams", "response/distinct_2"}}},
          {"Gradient norms", "2-norm before clipping", {{"actor", "actor/grad_norm"}, {"critic", "critic/grad_norm"}}},
          {"Learning rates", "learning rate", {{"actor", "actor/lr"}, {"critic", "critic/lr"}}}};
}

std::string render_report(const ReportInput& input) {
  std::string out = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n", escape_html(input.title), kStyle);
  const std::string last = input.metrics.empty() ? "0" : short_number(input.metrics.back().at("step"));
  out += fmt::format("<h1>{}</h1>\n<p class=\"soft\">{}, {} steps, tercet {}</p>\n", escape_html(input.title),
                     escape_html(input.step), escape_html(last), tercet_version());
  out += table_section(held_out_table(input.metrics));
  out += "<h2>Curves</h2>\n" + plots_section(input);
  out += samples_section(input.samples);
  for (const ReportTable& table : input.tables) out += table_section(table);
  if (!input.memory_plan.empty())
    out +=
        fmt::format("<h2>Memory plan</h2>\n<div class=\"panel\"><pre>{}</pre></div>\n", escape_html(input.memory_plan));
  return out + "</body>\n</html>\n";
}

void write_report(const std::string& folder, const ReportExtras& extras) {
  const RunRecord record = read_run_record(folder);
  ReportInput input;
  input.step = record.step;
  const std::string name = std::filesystem::path(folder).lexically_normal().filename().string();
  input.title = fmt::format("{}: {}", record.step, name.empty() ? folder : name);
  input.metrics = log_lines(folder + "/metrics.jsonl");
  input.samples = log_lines(folder + "/samples.jsonl");
  input.plots = standard_plots(record.step);
  input.figures = extras.figures;
  input.tables = extras.tables;
  input.tables.push_back(members_table("Settings", {"flag", "value"}, record.settings));
  input.tables.push_back(members_table("Inputs", {"file", "XXH3-128"}, record.input_hashes));
  input.memory_plan = extras.memory_plan;
  write_file_atomically(folder + "/report.html", render_report(input));
}

ReportTable dropped_records_table(std::span<const std::pair<std::string, const DropCounts*>> sources) {
  ReportTable table{"Records", {"source", "what", "count", "share", "first one"}, {}};
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

Figure margin_histogram(std::span<const double> margins) {
  Figure figure{.title = "Margins of pairs",
                .x_label = "score of chosen minus score of rejected",
                .y_label = "pairs",
                .style = Figure::Style::bars};
  if (margins.empty()) return figure;
  const auto [low, high] = std::ranges::minmax(margins);
  constexpr double bars = 24;
  // A bar never holds margins of both signs: its edges are multiples of the width.
  figure.bar_width = std::max((high - low) / bars, 1e-12);
  std::map<int64_t, int64_t> counts;
  for (const double margin : margins) ++counts[static_cast<int64_t>(std::floor(margin / figure.bar_width))];
  Figure::Series series{"pairs", {}};
  for (const auto& [bin, count] : counts)
    series.points.emplace_back((static_cast<double>(bin) + 0.5) * figure.bar_width, static_cast<double>(count));
  figure.series.push_back(std::move(series));
  return figure;
}

Figure accuracy_by_margin(std::span<const double> margins) {
  Figure figure{
      .title = "Accuracy by margin", .x_label = "size of the margin", .y_label = "share of pairs that are right"};
  std::vector<double> sorted(margins.begin(), margins.end());
  std::ranges::sort(sorted, {}, [](double margin) { return std::abs(margin); });
  Figure::Series series{"tenths of the pairs", {}};
  const size_t bins = std::min<size_t>(10, sorted.size());
  for (size_t bin = 0; bin < bins; ++bin) {
    const size_t begin = bin * sorted.size() / bins, end = (bin + 1) * sorted.size() / bins;
    double size = 0, right = 0;
    for (size_t i = begin; i < end; ++i) {
      size += std::abs(sorted[i]);
      right += sorted[i] > 0 ? 1 : 0;
    }
    const auto count = static_cast<double>(end - begin);
    series.points.emplace_back(size / count, right / count);
  }
  if (bins > 0) figure.series.push_back(std::move(series));
  return figure;
}

Figure score_against_length(std::span<const std::pair<double, double>> chosen,
                            std::span<const std::pair<double, double>> rejected) {
  Figure figure{.title = "Score against length",
                .x_label = "tokens of the answer",
                .y_label = "score",
                .style = Figure::Style::points};
  if (!chosen.empty()) figure.series.push_back({"chosen", {chosen.begin(), chosen.end()}});
  if (!rejected.empty()) figure.series.push_back({"rejected", {rejected.begin(), rejected.end()}});
  return figure;
}

}  // namespace tercet
