#include "train/report_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"
#include "train/html.h"
#include "train/run_logs.h"

namespace tercet {
namespace {

constexpr const char* kFile = "samples.jsonl";

// One fixed record before and after training.
struct SamplePair {
  const Json* before;
  const Json* after;

  // 0 when one of the two is not finite.
  double change(const char* figure) const {
    const double change = number_of(after->at(figure)) - number_of(before->at(figure));
    return std::isfinite(change) ? change : 0;
  }
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

std::string block(const std::string& heading, const std::string& prompt, const std::string& answers) {
  return fmt::format(
      "<div class=\"panel sample\"><h3>{}</h3><pre class=\"soft\">{}</pre><div class=\"answers\">{}</div></div>\n",
      escape_html(heading), escape_html(prompt.substr(std::min(prompt.find_first_not_of('\n'), prompt.size()))),
      answers);
}

std::string answer(const std::string& heading, const std::string& text, const std::string& figures) {
  return fmt::format("<div><h3>{}</h3><pre>{}</pre><p class=\"soft\">{}</p></div>\n", escape_html(heading),
                     escape_html(text), escape_html(figures));
}

// "score 1.25, kl 0.5": those of the members that the sample has.
std::string figures_of(const Json& sample, std::initializer_list<const char*> names) {
  std::string out;
  for (const char* name : names)
    if (const Json* value = sample.find(name))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                         value->is_string() ? value->as_string() : short_number(number_of(*value)));
  return out;
}

std::string step_of(const Json& sample) { return "step " + short_number(sample.at("step").as_double()); }

// A record before and after: of ppo two responses, of sft the record's answer and two losses.
std::string change_block(const std::string& step, const std::string& heading, const SamplePair& pair) {
  std::string answers;
  if (step == "ppo") {
    for (const Json* sample : {pair.before, pair.after})
      answers += answer(step_of(*sample), sample->at("response").as_string(),
                        figures_of(*sample, {"score", "judge_score", "kl", "length", "finish"}));
  } else {
    answers = answer("answer", pair.after->at("response").as_string(),
                     fmt::format("{}: {}; {}: {}", step_of(*pair.before), figures_of(*pair.before, {"loss"}),
                                 step_of(*pair.after), figures_of(*pair.after, {"loss", "length"})));
  }
  return block(heading, pair.before->at("prompt").as_string(), answers);
}

std::string changes_section(const std::string& step, const std::vector<Json>& samples) {
  const std::vector<SamplePair> pairs = sample_pairs(samples);
  const char* figure = step == "ppo" ? "score" : "loss";
  const auto by_change = [&](const SamplePair& a, const SamplePair& b) { return a.change(figure) < b.change(figure); };
  const auto [lowest, highest] = std::ranges::minmax_element(pairs, by_change);
  const auto [worst, best] = step == "ppo" ? std::pair(lowest, highest) : std::pair(highest, lowest);
  const RandomStream random(0, RandomPurpose::shuffle);
  const SamplePair& any = pairs[random.below(pairs.size(), pairs.size())];
  const auto heading = [&](const std::string& what, const SamplePair& pair) {
    return fmt::format("{}, {:+.4g}", what, pair.change(figure));
  };
  std::string out = fmt::format("<h2>Fixed {}, before and after</h2>\n", step == "ppo" ? "prompts" : "records");
  out += change_block(step, heading(fmt::format("Best change of the {}", figure), *best), *best);
  out += change_block(step, heading(fmt::format("Worst change of the {}", figure), *worst), *worst);
  out += change_block(step, heading("A random one", any), any);
  out += fmt::format("<details><summary>All {}</summary>\n", pairs.size());
  for (const SamplePair& pair : pairs)
    out += change_block(step, heading("Number " + short_number(pair.before->at("index").as_double()), pair), pair);
  return out + "</details>\n";
}

// The samples of the latest step.
std::vector<const Json*> latest(const std::vector<Json>& samples) {
  std::vector<const Json*> result;
  for (const Json& sample : samples) {
    if (!result.empty() && sample.at("step") != result.back()->at("step")) result.clear();
    result.push_back(&sample);
  }
  return result;
}

// One that is not a number is the lowest.
double margin_of(const Json* pair) {
  const double margin = number_of(pair->at("margin"));
  return std::isnan(margin) ? -std::numeric_limits<double>::infinity() : margin;
}

std::string pair_block(const std::string& heading, const Json& pair) {
  std::string answers;
  for (const std::string side : {"chosen", "rejected"})
    answers += answer(side, pair.at(side).as_string(),
                      fmt::format("score {}, length {}", short_number(number_of(pair.at(side + "_score"))),
                                  short_number(pair.at(side + "_length").as_double())));
  return block(fmt::format("{}, {:+.4g}", heading, margin_of(&pair)), pair.at("prompt").as_string(), answers);
}

std::string pairs_section(const std::vector<Json>& samples) {
  constexpr size_t most_wrong = 10;
  std::vector<const Json*> pairs = latest(samples);
  const bool held_out = pairs[0]->at("held_out").as_bool();
  const RandomStream random(0, RandomPurpose::shuffle);
  const Json& any = *pairs[random.below(pairs.size(), pairs.size())];
  std::ranges::stable_sort(pairs, {}, margin_of);
  std::string out = fmt::format("<h2>{} pairs at step {}</h2>\n", held_out ? "Held-out" : "Training",
                                short_number(pairs[0]->at("step").as_double()));
  out += pair_block("Lowest margin", *pairs.front()) + pair_block("Highest margin", *pairs.back());
  out += pair_block("A random one", any);
  const size_t count = std::min(most_wrong, pairs.size());
  out += fmt::format("<details><summary>The {} lowest margins of {}</summary>\n", count, pairs.size());
  for (size_t i = 0; i < count; ++i)
    out += pair_block("Record " + short_number(pairs[i]->at("record").as_double()), *pairs[i]);
  return out + "</details>\n";
}

Figure score_against_length(std::span<const Json* const> pairs) {
  Figure figure{.title = "Score against length",
                .x_label = "tokens of the answer",
                .y_label = "score",
                .style = Figure::Style::points};
  for (const std::string side : {"chosen", "rejected"}) {
    Figure::Series series{.label = side, .points = {}, .source = {kFile, side + "_length", side + "_score"}};
    for (const Json* pair : pairs)
      series.points.emplace_back(number_of(pair->at(side + "_length")), number_of(pair->at(side + "_score")));
    figure.series.push_back(std::move(series));
  }
  return figure;
}

}  // namespace

std::string samples_section(const std::string& step, const std::vector<Json>& samples) {
  if (samples.empty()) return "";
  return step == "reward" ? pairs_section(samples) : changes_section(step, samples);
}

std::vector<Figure> sample_figures(const std::string& step, const std::vector<Json>& samples) {
  if (step != "reward" || samples.empty()) return {};
  const std::vector<const Json*> pairs = latest(samples);
  std::vector<double> margins;
  for (const Json* pair : pairs)
    if (std::isfinite(margin_of(pair))) margins.push_back(margin_of(pair));
  return {margin_histogram(margins), accuracy_by_margin(margins), score_against_length(pairs)};
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
  Figure::Series series{.label = "pairs", .points = {}, .source = {kFile, "margin", "pairs"}};
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
  Figure::Series series{.label = "tenths of the pairs", .points = {}, .source = {kFile, "margin", "accuracy"}};
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

}  // namespace tercet
