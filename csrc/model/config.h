// model: OPT. Its configuration, its parameters as units, forward and backward over ragged batches, heads, and the
// model file.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "kernels/linear.h"

namespace tercet {

// The architecture of an OPT model; field names are those of Hugging Face's config.json.
struct OptConfig {
  int64_t vocab_size = 50272;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t ffn_dim = 3072;
  int64_t num_attention_heads = 12;
  int64_t max_position_embeddings = 2048;
  int64_t word_embed_proj_dim = 768;  // width of the token embedding and of the last hidden state
  bool do_layer_norm_before = true;
  bool remove_final_layer_norm = false;  // `_remove_final_layer_norm`
  bool enable_bias = true;
  bool layer_norm_elementwise_affine = true;
  Activation activation_function = Activation::relu;
  double init_std = 0.02;
  int32_t bos_token_id = 2;
  int32_t eos_token_id = 2;
  int32_t pad_token_id = 1;

  // Positions are rows of the position table from this one on.
  static constexpr int64_t kPositionOffset = 2;
  static constexpr double kLayerNormEpsilon = 1e-5;

  int64_t head_size() const { return hidden_size / num_attention_heads; }
  bool has_projections() const { return word_embed_proj_dim != hidden_size; }
  bool has_final_layer_norm() const { return do_layer_norm_before && !remove_final_layer_norm; }
  int64_t parameters() const;

  // Reads config.json; absent keys take the defaults of transformers' OPTConfig, unknown keys are ignored. Throws
  // Error(Fault::input) for another model type, an unsupported value or sizes that do not divide.
  static OptConfig from_json(const Json& json, const std::string& where);
  Json to_json() const;

  // A released size ("opt-125m", ..., "opt-175b"); throws Error(Fault::input) listing the names for another one.
  static OptConfig released(const std::string& name);

  // Throws Error(Fault::input) when the sizes do not fit each other.
  void validate(const std::string& where) const;

  bool operator==(const OptConfig&) const = default;
};

}  // namespace tercet
