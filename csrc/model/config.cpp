#include "model/config.h"

#include <array>

#include "base/error.h"
#include "model/model.h"

namespace tercet {
namespace {

struct ReleasedSize {
  const char* name;
  int64_t layers, hidden, heads, embedding;
  bool pre_norm;
};

// S. Zhang et al., "OPT: open pre-trained transformer language models", 2022; widths as in the released config.json
// files.
constexpr std::array<ReleasedSize, 9> kReleased = {{{"opt-125m", 12, 768, 12, 768, true},
                                                    {"opt-350m", 24, 1024, 16, 512, false},
                                                    {"opt-1.3b", 24, 2048, 32, 2048, true},
                                                    {"opt-2.7b", 32, 2560, 32, 2560, true},
                                                    {"opt-6.7b", 32, 4096, 32, 4096, true},
                                                    {"opt-13b", 40, 5120, 40, 5120, true},
                                                    {"opt-30b", 48, 7168, 56, 7168, true},
                                                    {"opt-66b", 64, 9216, 72, 9216, true},
                                                    {"opt-175b", 96, 12288, 96, 12288, true}}};

// Reads a key when present; the message of a wrong type names it.
template <class Reader>
void read_key(const Json& json, const char* key, const std::string& where, const Reader& reader) {
  const Json* value = json.find(key);
  if (value == nullptr || value->is_null()) return;
  try {
    reader(*value);
  } catch (const Error& error) {
    fail_input(fmt::format("{}: {}", key, error.what()), where, "correct this key of the configuration");
  }
}

Activation parse_activation(const std::string& name, const std::string& where) {
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  fail_input(fmt::format("activation_function \"{}\" is not supported", name), where, "relu and gelu are");
}

int32_t token_id(const Json& value) {
  const int64_t id = value.as_int();
  if (id < 0 || id > INT32_MAX) fail_input(fmt::format("{} is not a token id", id));
  return static_cast<int32_t>(id);
}

}  // namespace

OptConfig OptConfig::from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) fail_input("the configuration is not a JSON object", where);
  read_key(json, "model_type", where, [&](const Json& value) {
    if (value.as_string() != "opt")
      fail_input(fmt::format("model_type is \"{}\"", value.as_string()), where, "only \"opt\" is supported");
  });
  OptConfig config;
  const auto integer = [&](const char* key, int64_t& field) {
    read_key(json, key, where, [&](const Json& value) { field = value.as_int(); });
  };
  const auto boolean = [&](const char* key, bool& field) {
    read_key(json, key, where, [&](const Json& value) { field = value.as_bool(); });
  };
  integer("vocab_size", config.vocab_size);
  integer("hidden_size", config.hidden_size);
  integer("num_hidden_layers", config.num_hidden_layers);
  integer("ffn_dim", config.ffn_dim);
  integer("num_attention_heads", config.num_attention_heads);
  integer("max_position_embeddings", config.max_position_embeddings);
  config.word_embed_proj_dim = config.hidden_size;
  integer("word_embed_proj_dim", config.word_embed_proj_dim);
  boolean("do_layer_norm_before", config.do_layer_norm_before);
  boolean("_remove_final_layer_norm", config.remove_final_layer_norm);
  boolean("enable_bias", config.enable_bias);
  boolean("layer_norm_elementwise_affine", config.layer_norm_elementwise_affine);
  read_key(json, "activation_function", where,
           [&](const Json& value) { config.activation_function = parse_activation(value.as_string(), where); });
  read_key(json, "init_std", where, [&](const Json& value) { config.init_std = value.as_double(); });
  read_key(json, "bos_token_id", where, [&](const Json& value) { config.bos_token_id = token_id(value); });
  read_key(json, "eos_token_id", where, [&](const Json& value) { config.eos_token_id = token_id(value); });
  read_key(json, "pad_token_id", where, [&](const Json& value) { config.pad_token_id = token_id(value); });
  read_key(json, "tie_word_embeddings", where, [&](const Json& value) {
    if (!value.as_bool()) fail_input("tie_word_embeddings is false", where, "only tied embeddings are supported");
  });
  config.validate(where);
  return config;
}

Json OptConfig::to_json() const {
  Json json = Json::object();
  json.set("model_type", "opt");
  json.set("architectures", Json::Array{Json("OPTForCausalLM")});
  json.set("vocab_size", vocab_size).set("hidden_size", hidden_size).set("num_hidden_layers", num_hidden_layers);
  json.set("ffn_dim", ffn_dim).set("num_attention_heads", num_attention_heads);
  json.set("max_position_embeddings", max_position_embeddings).set("word_embed_proj_dim", word_embed_proj_dim);
  json.set("do_layer_norm_before", do_layer_norm_before).set("_remove_final_layer_norm", remove_final_layer_norm);
  json.set("enable_bias", enable_bias).set("layer_norm_elementwise_affine", layer_norm_elementwise_affine);
  json.set("activation_function", activation_function == Activation::gelu ? "gelu" : "relu");
  json.set("init_std", init_std).set("dropout", 0.0).set("attention_dropout", 0.0);
  json.set("bos_token_id", int64_t{bos_token_id}).set("eos_token_id", int64_t{eos_token_id});
  json.set("pad_token_id", int64_t{pad_token_id}).set("tie_word_embeddings", true);
  return json;
}

OptConfig OptConfig::released(const std::string& name) {
  std::string names;
  for (const ReleasedSize& size : kReleased) {
    if (name == size.name) {
      OptConfig config;
      config.num_hidden_layers = size.layers;
      config.hidden_size = size.hidden;
      config.num_attention_heads = size.heads;
      config.ffn_dim = 4 * size.hidden;
      config.word_embed_proj_dim = size.embedding;
      config.do_layer_norm_before = size.pre_norm;
      return config;
    }
    names += (names.empty() ? "" : ", ") + std::string(size.name);
  }
  fail_input(fmt::format("no model size is called \"{}\"", name), "--config", "use a JSON file or one of " + names);
}

void OptConfig::validate(const std::string& where) const {
  const auto positive = [&](const char* key, int64_t value) {
    if (value < 1) fail_input(fmt::format("{} is {}", key, value), where, "it must be at least 1");
    if (value > (int64_t{1} << 31)) fail_input(fmt::format("{} is {}", key, value), where, "this is out of range");
  };
  positive("vocab_size", vocab_size);
  positive("hidden_size", hidden_size);
  positive("num_hidden_layers", num_hidden_layers);
  positive("ffn_dim", ffn_dim);
  positive("num_attention_heads", num_attention_heads);
  positive("max_position_embeddings", max_position_embeddings);
  positive("word_embed_proj_dim", word_embed_proj_dim);
  if (hidden_size % num_attention_heads != 0)
    fail_input(
        fmt::format("hidden_size {} does not divide by num_attention_heads {}", hidden_size, num_attention_heads),
        where, "correct one of them");
  if (head_size() % 2 != 0) fail_input(fmt::format("the head size {} is odd", head_size()), where, "it must be even");
  if (!(init_std >= 0)) fail_input(fmt::format("init_std is {}", init_std), where, "it must not be negative");
}

int64_t OptConfig::parameters() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : opt_units(*this, Head::language_model))
    for (const SegmentSpec& segment : unit.segments) sum += segment.elements;
  return sum;
}

}  // namespace tercet
