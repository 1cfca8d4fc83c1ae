// One file is a model: configuration, tokenizer, dialogue template, weights under their Hugging Face names, provenance.
#pragma once

#include <optional>
#include <string>

#include "model/model.h"
#include "text/tokenizer.h"

namespace tercet {

class Hdf5Writer;

// The affine map that reward models carry: normalised score = (score - mean) / sd.
struct ScoreAffine {
  double mean = 0;
  double sd = 1;
};

// All of a model file but the weights.
struct ModelInfo {
  OptConfig config;
  Head head = Head::language_model;
  std::string prompt_template = "human-assistant";  // or "none"
  std::string vocab_json, merges_txt;
  std::optional<ScoreAffine> affine;  // reward models and critics
  DType dtype = DType::f32;           // of the weights in the file
  Json provenance = Json::object();   // how the file came to be: command, version, inputs and their hashes

  // Throws Error(Fault::input, where = `where`) when its texts are damaged or it does not fit the configuration.
  Tokenizer tokenizer(const std::string& where) const;
};

// Reads everything but the weights. Throws Error(Fault::input) for a file that is not a tercet model.
ModelInfo read_model_info(const std::string& path);

// Stores all texts of a model file, to which the weights in `dtype` are then added under their names.
void write_model_info(Hdf5Writer& file, const ModelInfo& info, DType dtype);

// The scalar head that a language model's weights are given.
struct FreshHead {
  std::optional<uint64_t> seed;  // drawn from N(0, 1/(width + 1)) with this seed; zeros without one
};

// Reads the weights into units made by opt_units(info.config, head). With `fresh_head`, a language model's weights may
// be read into units with a scalar head; anything else that differs, a missing, extra or misshapen tensor is an
// Error(Fault::input) that names it. A non-finite weight is refused by name.
void read_weights(Stream& stream, const std::string& path, UnitSet& units, std::optional<FreshHead> fresh_head = {});

// Writes the model file atomically, weights in `dtype`.
void write_model(Stream& stream, const std::string& path, const ModelInfo& info, UnitSet& units, DType dtype);

// Draws fresh weights: Linear and embedding N(0, init_std), biases 0, norms 1 and 0, row pad_token_id of the token
// embedding 0, score head N(0, 1/(width + 1)) (standard deviation 1/sqrt(width + 1)). A function of the seed and the
// tensor names.
void init_weights(Stream& stream, UnitSet& units, const OptConfig& config, uint64_t seed);

// Throws Error(Fault::input) when the tokenizer has ids outside the vocabulary of the configuration.
void require_tokenizer_fits(const Tokenizer& tokenizer, const OptConfig& config, const std::string& where);

}  // namespace tercet
