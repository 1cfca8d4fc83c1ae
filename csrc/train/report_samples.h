// What samples.jsonl holds, and the parts of the report that are made of it. Each line has "step", the evaluation that
// it belongs to, and "index", the record's place among the samples of that evaluation.
//
// sft: the first held-out records at each evaluation: "record", "prompt", "response", "loss" (nats per token that
// carries a loss) and "length" (tokens of the answer).
// reward: every held-out pair at the last evaluation, or without held-out data the first training pairs: "record",
// "held_out", "prompt", "chosen", "rejected", "chosen_score", "rejected_score", "margin", "chosen_length",
// "rejected_length".
// ppo: the first held-out prompts at each evaluation, or without held-out data the first training prompts before and
// after: "record", "prompt", "response", "score", "judge_score" (with a judge), "kl" (nats), "length" (tokens, the
// final id 2 among them), "finish" ("end" or "length").
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/svg_plot.h"

namespace tercet {

// Of sft and ppo, at each evaluation.
constexpr size_t kFixedSamples = 20;

// HTML: sft and ppo show fixed records before and after, those of the best, the worst and a random change and, folded,
// all; reward shows the pairs of the lowest, the highest and a random margin. Empty without samples.
std::string samples_section(const std::string& step, const std::vector<Json>& samples);

// Plots of a reward model's pairs of the latest step: margin histogram, accuracy by margin, score against length.
std::vector<Figure> sample_figures(const std::string& step, const std::vector<Json>& samples);

// `margins`: score of chosen minus that of rejected.
Figure margin_histogram(std::span<const double> margins);
// Share of margins above 0 among the pairs of each tenth by |margin|, against the mean |margin| of the tenth.
Figure accuracy_by_margin(std::span<const double> margins);

}  // namespace tercet
