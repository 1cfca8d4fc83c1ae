// Export to Hugging Face model folders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "device/dtype.h"

namespace tercet {

struct ExportOptions {
  std::optional<DType> dtype;               // of the weights in the folder; none: as they are
  uint64_t max_shard_size = 5'000'000'000;  // bytes of tensors in a file, at least 1
};

// Writes the model file `path` as the folder `folder`, which transformers loads: config.json, the weights, the
// tokenizer's vocab.json, merges.txt, tokenizer_config.json and special_tokens_map.json. A language model is an
// OPTForCausalLM, with generation_config.json; a reward model is an OPTForSequenceClassification with one label, whose
// logit is the raw score. Tensors keep their names; the tied token embedding is "model.decoder.embed_tokens.weight".
//
// Weights are model.safetensors or, when they have more bytes than max_shard_size, model-0000k-of-0000n.safetensors
// with model.safetensors.index.json; a tensor above max_shard_size has a shard of its own.
//
// What transformers has no place for is in config.json under "tercet", from where import_hugging_face takes it back:
// "prompt_template", and for reward models that have it "score_mean" and "score_sd".
//
// Tensor by tensor, so that memory does not grow with the model. The folder appears whole, by a rename; on failure
// nothing is left, and what a killed export left is removed by the next one to `folder`. Throws Error(Fault::input)
// when `folder` is a file or is not empty or its parent is missing or not writable, when `path` is no model file or its
// tensors do not fit its configuration, and for a weight that is not finite or beyond the range of the dtype;
// Error(Fault::run) when the folder cannot be written; Interrupted (base/interrupt.h) after SIGINT and SIGTERM.
void export_hugging_face(const std::string& path, const std::string& folder, const ExportOptions& options = {});

// The bytes of "5000000000", "5GB", "20MB" or "8KB" (powers of 1000); none for another text, 0 and 2^63 or more.
std::optional<uint64_t> parse_shard_size(std::string_view text);

}  // namespace tercet
