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

const PlotSpec kRate = {
    .title = "Rate", .y_label = "tokens per second", .series = {{"rate", "tokens_per_s"}}, .log = "timings.jsonl"};
const PlotSpec kLearningRate = {"Learning rate", "per optimiser step", {{"rate", "lr"}}};
const PlotSpec kGradientNorm = {.title = "Gradient norm",
                                .y_label = "2-norm before clipping",
                                .series = {{"norm", "grad_norm"}},
                                .wide_range = true};

PlotSpec::Series training(const std::string& name) { return {.label = "training", .name = name}; }
PlotSpec::Series held_out(const std::string& name) { return {.label = "held out", .name = name, .held_out = true}; }

std::vector<PlotSpec> sft_plots() {
  return {
      {"Loss", "nats per token", {training("sft/loss"), held_out("eval/loss")}},
      {.title = "Perplexity", .y_label = "", .series = {training("sft/ppl"), held_out("eval/ppl")}, .wide_range = true},
      kRate,
      kLearningRate,
      kGradientNorm,
      {"Entropy", "nats per token", {training("sft/entropy"), held_out("eval/entropy")}}};
}

std::vector<PlotSpec> reward_plots() {
  return {{"Loss", "nats per pair", {training("rm/loss"), held_out("eval/loss")}},
          {"Accuracy",
           "share of pairs",
           {training("rm/acc"),
            held_out("eval/accuracy"),
            {.label = "the shorter wins", .name = "eval/shorter_wins", .held_out = true}}},
          {"Margin", "score", {training("rm/margin_mean"), held_out("eval/margin")}},
          {"Scores", "score", {{"chosen", "rm/chosen_mean"}, {"rejected", "rm/rejected_mean"}}},
          kRate,
          kLearningRate,
          kGradientNorm};
}

std::vector<PlotSpec> ppo_plots() {
  return {{"Score", "raw", {training("objective/score"), held_out("eval/score")}},
          {"Normalised score",
           "standard deviations",
           {training("objective/score_normalized"), held_out("eval/score_normalized")}},
          {"Judge's score", "raw", {held_out("eval/judge_score")}},
          {"Win rate against the reference",
           "share of prompts",
           {{.label = "reward model", .name = "eval/win_rate", .held_out = true},
            {.label = "judge", .name = "eval/judge_win_rate", .held_out = true}}},
          {"Reward with KL penalty", "per sequence", {{"reward", "objective/rlhf_reward"}}},
          {"KL", "nats per sequence", {training("objective/kl_seq"), held_out("eval/kl_seq")}},
          {.title = "Score against KL",
           .y_label = "raw score",
           .series = {training("objective/score"), {"held out", "eval/score", "eval/kl_seq", true}},
           .x = "objective/kl_seq",
           .x_label = "KL, nats per sequence"},
          {"KL coefficient", "beta", {{"beta", "objective/kl_coef"}}},
          {"Response length", "tokens", {training("response/len_mean"), held_out("eval/len_mean")}},
          {"EOS rate", "share of responses that ended", {training("response/eos_rate"), held_out("eval/eos_rate")}},
          {"Entropy", "nats per token", {training("policy/entropy"), held_out("eval/entropy")}},
          {"Clip fraction", "share of tokens", {{"below", "policy/clipfrac_low"}, {"above", "policy/clipfrac_high"}}},
          {"Explained variance", "share", {{"critic", "value/explained_var"}}},
          {"Losses", "", {{"policy", "loss/policy"}, {"value", "loss/value"}, {"ptx", "loss/ptx"}}},
          {"Approximate KL of the updates", "nats per token", {{"policy", "policy/approxkl"}}},
          {"Decode path against training path",
           "probability",
           {{"mean", "rollout/probs_diff_mean"}, {"largest", "rollout/probs_diff_max"}}},
          {"Repetition",
           "share of n-grams",
           {{"repeated 3-grams", "response/repetition"}, {"distinct 2-grams", "response/distinct_2"}}},
          {.title = "Gradient norms",
           .y_label = "2-norm before clipping",
           .series = {{"actor", "actor/grad_norm"}, {"critic", "critic/grad_norm"}},
           .wide_range = true},
          {"Learning rates", "per optimiser step", {{"actor", "actor/lr"}, {"critic", "critic/lr"}}},
          {.title = "Time per iteration",
           .y_label = "seconds",
           .series = {{"generate", "time/generate"},
                      {"score", "time/score"},
                      {"log-probabilities", "time/logprob"},
                      {"train", "time/train"}},
           .log = "timings.jsonl"},
          kRate};
}

}  // namespace

std::vector<PlotSpec> standard_plots(const std::string& step) {
  return step == "sft" ? sft_plots() : step == "reward" ? reward_plots() : ppo_plots();
}

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
