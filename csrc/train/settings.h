// train: the three steps (SFT, reward model, PPO), evaluation, reward sources, checkpoints, the run folder and reports.
//
// This header holds the settings of every command that trains and their defaults; flags and help are one table in app/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "optim/optimizer.h"

namespace tercet {

// What all training commands share. Names are those of the flags, with '_' for '-'.
struct CommonSettings {
  std::vector<std::string> data;
  std::vector<std::string> eval_data;
  std::string out;
  std::string fields;
  std::string prompt_template;  // empty: the model's
  std::string turns = "last";
  std::string split;  // "2,4,4"
  bool truncate = false;
  int64_t max_bad_records = 0;

  std::string device = "auto";
  std::string dtype;  // empty: the device's (checked_dtype)
  int threads = 0;    // 0: this process's cores
  int64_t steps = 0;  // 0: by epochs
  double epochs = 1;
  int64_t batch_size = 64;         // sequences or pairs per optimiser step on all ranks
  int64_t micro_batch_tokens = 0;  // 0: chosen from max_length
  int64_t max_length = 512;
  double lr = 1e-5;
  std::string schedule = "cosine";
  double warmup = 0.03;  // share of the steps when below 1, else steps
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double max_grad_norm = 1;
  std::string recompute = "none";  // none or block
  double dropout = 0;
  uint64_t seed = 1;
  int64_t eval_every = 0;  // optimiser steps (iterations in PPO); 0: before and after only
  int64_t save_every = 0;  // 0: at the end only
  int64_t keep = 2;        // checkpoints kept
  int64_t log_every = 10;  // terminal lines; metrics.jsonl has every step
  int64_t max_skips = 10;  // skipped steps in a row that end the run
  bool deterministic = true;
  bool tensorboard = false;
  bool resume = false;
  bool overwrite = false;

  // Not flags; `rlhf` sets them for the steps that it runs.
  std::string resume_command;                         // printed after a stop; empty: that of the step itself
  std::map<std::string, std::string> recorded_names;  // what the run's record calls files; others go by their paths
};

struct SftSettings : CommonSettings {
  std::string model;
  std::string loss_on = "response";  // or "all"
};

struct RewardSettings : CommonSettings {
  std::string model;
  std::string loss = "last";    // or "tokens"
  bool shuffle_labels = false;  // swaps chosen and rejected of a random half of the pairs: a control
};

// `steps` and `epochs` count iterations and passes over the prompts. Of the common settings, batch_size, lr,
// weight_decay, max_grad_norm, recompute and dropout do not apply: their per-model forms below do.
struct PpoSettings : CommonSettings {
  PpoSettings() {
    adam_eps = 1e-5;
    schedule = "linear";
  }

  std::string actor, critic, reference, judge_model;
  std::string reward_model, reward_rule;  // one of them
  int64_t rollouts = 64;
  int64_t minibatches = 1;
  int64_t ppo_epochs = 4;
  int64_t max_prompt_tokens = 256;
  int64_t max_new_tokens = 256;
  double temperature = 1;
  double kl_coef = 0.05;
  double adaptive_kl_target = 0;  // nats per sequence; 0: fixed coefficient
  double kl_horizon = 10000;
  double gamma = 1;
  double gae_lambda = 0.95;
  double clip_range = 0.2;
  double value_clip_range = 0.2;
  bool whiten_advantages = true;
  double reward_clip = 5;
  bool normalize_reward = true;
  double missing_eos_penalty = 1;
  double entropy_coef = 0;
  double early_stop_kl = 0;  // 0: off
  std::vector<std::string> ptx_data;
  double ptx_coef = 0;
  double ema_decay = 0;  // 0: off
  double actor_lr = 1e-6, critic_lr = 5e-6;
  double actor_weight_decay = 0, critic_weight_decay = 0;
  double actor_max_grad_norm = 1, critic_max_grad_norm = 1;
  std::string actor_recompute = "none", critic_recompute = "none";
  int64_t generation_slots = 0;  // 0: chosen from rollouts
};

// The learning-rate schedule of a run of `total_steps` optimiser steps. Throws Error(Fault::input) for an unknown
// shape.
Schedule make_schedule(const CommonSettings& settings, double lr, int64_t total_steps);

// The dtype called `dtype`, after checking that `device` computes in it; "" is bf16 on cuda and fp32 elsewhere. Throws
// Error(Fault::input) that names --dtype.
DType checked_dtype(const Device& device, const std::string& dtype);

}  // namespace tercet
