// Import of Hugging Face model folders.
#pragma once

#include <optional>
#include <string>

#include "model/model_file.h"

namespace tercet {

struct ImportOptions {
  std::optional<DType> dtype;                  // of the weights in the model file; none: as they are
  std::optional<std::string> prompt_template;  // none: the folder's, where tercet wrote it, else "human-assistant"
  Json provenance = Json::object();            // to which the folder and its hashes are added
};

// Reads config.json, the weights (store/shard_index.h) and the tokenizer's files of `folder` and writes the model file
// `out`. Tensor by tensor, so that memory does not grow with the model.
//
// Names of tensors. "model.decoder.", "decoder." or nothing precedes the names of the decoder; "decoder.version" is
// left out. The tied token embedding is "embed_tokens.weight", "lm_head.weight" or both. "score.weight" makes a model
// with a scalar head. metaseq's names are known too: "layer_norm" for "final_layer_norm", "output_projection" for
// "lm_head", "project_in_dim" and "project_out_dim", and "self_attn.qkv_proj", whose rows are those of k, v and q, in
// this order.
//
// config.json may hold what export_hugging_face keeps under "tercet": the prompt template and the affine of scores.
//
// Throws Error(Fault::input) that names the file and the tensor: missing, extra, twice, of another shape than the
// configuration says, not floating, not finite or beyond the range of the dtype; lm_head and embed_tokens that differ;
// weights of several dtypes when `dtype` is not given; a tokenizer that does not fit the vocabulary.
void import_hugging_face(const std::string& folder, const std::string& out, const ImportOptions& options = {});

}  // namespace tercet
