// Writes the demo's dialogues: text for pretraining, demonstrations, preference pairs and prompts, and held-out sets.
#pragma once

#include <cstdint>
#include <string>

namespace tercet::demo {

// How many records of each file; `eval` counts those of each held-out file.
struct Sizes {
  int64_t pretrain = 60'000;
  int64_t sft = 16'000;
  int64_t pairs = 4'800;
  int64_t prompts = 2'560;
  int64_t eval = 512;
};

// What the demonstrations look like. Correctness and courtesy are drawn independently.
struct Mixture {
  double correct = 0.6;
  double courteous = 0.4;
};

// Writes pretrain.jsonl, sft.jsonl, pairs.jsonl, prompts.jsonl, eval_sft.jsonl, eval_pairs.jsonl and eval_prompts.jsonl
// into `folder`, which exists; equal arguments give equal bytes. No two records of these files share a prompt, save
// that pretraining text may repeat a prompt that is not held out. Throws Error(Fault::run) when a file cannot be
// written.
void write_dialogues(const std::string& folder, uint64_t seed, const Sizes& sizes, const Mixture& mixture);

}  // namespace tercet::demo
