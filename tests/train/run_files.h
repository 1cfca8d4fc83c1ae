// What tests of whole training runs need: a folder, model files, a quiet terminal.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/file.h"
#include "base/log.h"
#include "model/model_file.h"
#include "temporary_folder.h"
#include "text/small_tokenizer.h"

namespace tercet::testing {

class RunFiles : TemporaryFolder {
 public:
  std::string file(const std::string& name) const { return *this / name; }
};

// All that the run in a folder leaves and that must not depend on stops, by name.
inline std::map<std::string, std::string> run_results(const std::string& run) {
  std::map<std::string, std::string> files;
  for (const char* name :
       {"model.h5", "critic.h5", "ema.h5", "best.h5", "metrics.jsonl", "samples.jsonl", "config.toml"})
    if (const std::string path = run + "/" + name; std::filesystem::exists(path)) files[name] = read_file(path);
  return files;
}

class QuietTerminal {
 public:
  QuietTerminal() { log::set_terminal(false); }
  ~QuietTerminal() { log::set_terminal(true); }
};

// Model files of a run, vocabulary of bytes.
inline ModelInfo byte_model(Head head) {
  const Tokenizer tokenizer = small_tokenizer();
  ModelInfo info;
  info.config.vocab_size = tokenizer.size();
  info.config.hidden_size = info.config.word_embed_proj_dim = 16;
  info.config.num_hidden_layers = 1;
  info.config.num_attention_heads = 2;
  info.config.ffn_dim = 32;
  info.config.max_position_embeddings = 64;
  info.config.init_std = 0.2;
  info.head = head;
  info.vocab_json = tokenizer.vocab_json();
  info.merges_txt = tokenizer.merges_txt();
  if (head == Head::scalar) info.affine = ScoreAffine{0.1, 0.6};
  return info;
}

inline void write_fresh_model(const std::string& path, const ModelInfo& info, uint64_t seed) {
  const auto device = open_device("cpu");
  const auto stream = device->create_stream();
  const auto communicator = single_communicator();
  const UnitOptions options{.prefix = "model"};
  MemoryPlan plan;
  plan.add(UnitSet::footprint(opt_units(info.config, info.head), options));
  Arena arena(*device, plan);
  UnitSet units(opt_units(info.config, info.head), options, arena, *stream, *communicator);
  init_weights(*stream, units, info.config, seed);
  write_model(*stream, path, info, units, DType::f32);
}

}  // namespace tercet::testing
