#include "train/standard_plots.h"

namespace tercet {
namespace {

const PlotSpec kRate = {
    .title = "Rate", .y_label = "tokens per second", .series = {{"rate", "tokens_per_s"}}, .log = "timings.jsonl"};
const PlotSpec kLearningRate = {"Learning rate", "per optimiser step", {{"rate", "lr"}}};
const PlotSpec kGradientNorm = {.title = "Gradient norm",
                                .y_label = "2-norm before clipping",
                                .series = {{"norm", "grad_norm"}},
                                .wide_range = true};
const PlotSpec kUpdateNorm = {.title = "Update norm",
                              .y_label = "2-norm of an optimiser step",
                              .series = {{"norm", "update_norm"}},
                              .wide_range = true};

PlotSpec::Series training(const std::string& name, Scale scale = Scale::common) {
  return {.label = "training", .name = name, .scale = scale};
}
PlotSpec::Series held_out(const std::string& name, Scale scale = Scale::common) {
  return {.label = "held out", .name = name, .held_out = true, .scale = scale};
}

std::vector<PlotSpec> sft_plots() {
  return {
      {"Loss", "nats per token", {training("sft/loss"), held_out("eval/loss")}},
      {.title = "Perplexity", .y_label = "", .series = {training("sft/ppl"), held_out("eval/ppl")}, .wide_range = true},
      {"Token accuracy", "share of tokens", {training("sft/token_acc"), held_out("eval/token_acc")}},
      kRate,
      kLearningRate,
      kGradientNorm,
      kUpdateNorm,
      {"Entropy", "nats per token", {training("sft/entropy"), held_out("eval/entropy")}}};
}

std::vector<PlotSpec> reward_plots() {
  return {{"Loss", "nats per pair", {training("rm/loss"), held_out("eval/loss")}},
          {"Accuracy",
           "share of pairs",
           {training("rm/acc"),
            held_out("eval/accuracy"),
            {.label = "the shorter wins", .name = "eval/shorter_wins", .held_out = true}}},
          {"Margin", "log-odds", {training("rm/margin_mean"), held_out("eval/margin")}},
          {.title = "Scores",
           .y_label = "score",
           .series = {{"chosen", "rm/chosen_mean"}, {"rejected", "rm/rejected_mean"}},
           .compared = false},
          kRate,
          kLearningRate,
          kGradientNorm,
          kUpdateNorm};
}

std::vector<PlotSpec> ppo_plots() {
  return {{"Score", "raw", {training("objective/score", Scale::score), held_out("eval/score", Scale::score)}},
          {"Normalised score",
           "standard deviations",
           {training("objective/score_normalized", Scale::normalised_score),
            held_out("eval/score_normalized", Scale::normalised_score)}},
          {"Judge's score", "raw", {held_out("eval/judge_score", Scale::judge_score)}},
          {"Win rate against the reference",
           "share of prompts",
           {{.label = "reward", .name = "eval/win_rate", .held_out = true, .scale = Scale::score},
            {.label = "judge", .name = "eval/judge_win_rate", .held_out = true, .scale = Scale::judge_score}}},
          {"Reward with KL penalty",
           "per sequence",
           {{.label = "reward", .name = "objective/rlhf_reward", .scale = Scale::normalised_score}}},
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
          {"Losses",
           "",
           {{"policy", "loss/policy"},
            {.label = "value", .name = "loss/value", .scale = Scale::normalised_score},
            {"ptx", "loss/ptx"}}},
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
          {.title = "Update norms",
           .y_label = "2-norm of an optimiser step",
           .series = {{"actor", "actor/update_norm"}, {"critic", "critic/update_norm"}},
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

}  // namespace tercet
