#include "model/hf_export.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/temporary_path.h"
#include "model/hf_tensors.h"
#include "model/model_file.h"
#include "store/hdf5_file.h"
#include "store/safetensors.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

// Where the folder will be, links resolved: rename() replaces an empty folder but no link to one.
std::string free_place(const std::string& folder) {
  fs::path place = fs::weakly_canonical(fs::absolute(folder));
  if (!place.has_filename()) place = place.parent_path();
  const fs::file_status status = fs::symlink_status(place);
  if (fs::is_directory(status) ? !fs::is_empty(place) : fs::exists(status))
    fail_input(fs::is_directory(status) ? "the folder is not empty" : "there is a file of this name", folder,
               "choose another --out, or remove it first");
  return place.string();
}

void check_tensors(const TensorSource& source, const std::vector<TensorSpec>& expected) {
  constexpr const char* remedy = "the file does not hold the model that its configuration describes";
  for (const TensorSpec& spec : expected) {
    const TensorInfo* info = source.find(spec.name);
    if (info == nullptr) fail_input(fmt::format("the tensor {} is missing", spec.name), source.path(), remedy);
    if (info->shape != spec.shape || !is_floating(info->dtype))
      fail_input(
          fmt::format("{} is not a floating-point tensor of the shape {}", info->describe(), shape_text(spec.shape)),
          source.path(), remedy);
  }
  for (const TensorInfo& info : source.tensors())
    if (std::ranges::find(expected, info.name, &TensorSpec::name) == expected.end())
      fail_input(fmt::format("the tensor {} is not one of this model", info.name), source.path(), remedy);
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

Json own_settings(const ModelInfo& info) {
  Json own = Json::object();
  own.set("prompt_template", info.prompt_template);
  if (info.affine) own.set("score_mean", info.affine->mean).set("score_sd", info.affine->sd);
  return own;
}

Json config_json(const ModelInfo& info, DType dtype) {
  Json config = info.config.to_json();
  if (info.head == Head::scalar) {
    Json names = Json::object(), numbers = Json::object();
    config.set("architectures", Json::Array{Json("OPTForSequenceClassification")});
    config.set("id2label", std::move(names.set("0", "reward"))).set("label2id", std::move(numbers.set("reward", 0)));
  }
  // transformers reads the first of the two names since 4.56, the second before.
  config.set("dtype", torch_name(dtype)).set("torch_dtype", torch_name(dtype));
  return config.set("use_cache", true).set("tercet", own_settings(info));
}

Json special_tokens() {
  Json tokens = Json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token"}) tokens.set(name, "</s>");
  return tokens.set("pad_token", "<pad>");
}

Json tokenizer_config(const OptConfig& config) {
  Json json = special_tokens();
  json.set("tokenizer_class", "GPT2Tokenizer").set("add_bos_token", true).set("add_prefix_space", false);
  return json.set("errors", "replace").set("model_max_length", config.max_position_embeddings);
}

Json generation_config(const OptConfig& config) {
  Json json = Json::object();
  json.set("bos_token_id", int64_t{config.bos_token_id}).set("eos_token_id", int64_t{config.eos_token_id});
  return json.set("pad_token_id", int64_t{config.pad_token_id});
}

void write_texts(const ModelInfo& info, DType dtype, const std::string& folder) {
  const auto write = [&](const char* name, const Json& json) {
    write_file_atomically(folder + "/" + name, json.dump(2) + "\n");
  };
  write("config.json", config_json(info, dtype));
  if (info.head == Head::language_model) write("generation_config.json", generation_config(info.config));
  write("tokenizer_config.json", tokenizer_config(info.config));
  write("special_tokens_map.json", special_tokens());
  write_file_atomically(folder + "/vocab.json", info.vocab_json);
  write_file_atomically(folder + "/merges.txt", info.merges_txt);
}

using Shard = std::vector<TensorInfo>;

std::vector<Shard> cut_into_shards(const std::vector<TensorSpec>& tensors, DType dtype, uint64_t max_bytes) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (const TensorSpec& spec : tensors) {
    const TensorInfo info{spec.name, dtype, spec.shape};
    const auto bytes = static_cast<uint64_t>(info.bytes());
    if (!shards.back().empty() && bytes > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(info);
    filled += bytes;
  }
  return shards;
}

void write_shard(const TensorSource& source, const Shard& shard, const std::string& path) {
  SafetensorsWriter writer(path, shard);
  for (const TensorInfo& target : shard)
    copy_weights(source, source.at(target.name), 0, target.elements(), target.dtype,
                 [&](int64_t first, int64_t count, DType dtype, const void* elements) {
                   writer.write_part(target.name, first, count, dtype, elements);
                 });
  writer.finish();
}

Json index_json(const std::vector<Shard>& shards, const std::vector<std::string>& files) {
  int64_t parameters = 0, bytes = 0;
  std::map<std::string, std::string> sorted;
  for (size_t i = 0; i < shards.size(); ++i)
    for (const TensorInfo& info : shards[i]) {
      parameters += info.elements();
      bytes += info.bytes();
      sorted[info.name] = files[i];
    }
  Json index = Json::object(), metadata = Json::object(), weight_map = Json::object();
  for (const auto& [name, file] : sorted) weight_map.set(name, file);
  metadata.set("total_parameters", parameters).set("total_size", bytes);
  return index.set("metadata", std::move(metadata)).set("weight_map", std::move(weight_map));
}

void write_weights(const TensorSource& source, const std::vector<Shard>& shards, const std::string& folder) {
  if (shards.size() == 1) return write_shard(source, shards[0], folder + "/model.safetensors");
  std::vector<std::string> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    write_shard(source, shards[i], folder + "/" + files.back());
  }
  write_file_atomically(folder + "/model.safetensors.index.json", index_json(shards, files).dump(2) + "\n");
}

}  // namespace

std::optional<uint64_t> parse_shard_size(std::string_view text) {
  uint64_t number = 0, factor = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return {};
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const char* known : {"", "KB", "MB", "GB"}) {
    uint64_t bytes = 0;
    if (unit == known && !__builtin_mul_overflow(number, factor, &bytes) && bytes > 0 && bytes <= INT64_MAX)
      return bytes;
    factor *= 1000;
  }
  return {};
}

void export_hugging_face(const std::string& path, const std::string& folder, const ExportOptions& options) {
  TERCET_REQUIRE(options.max_shard_size > 0, "shards of 0 bytes hold no tensor");
  const ModelInfo info = read_model_info(path);
  const Hdf5Reader source(path, Hdf5Verify::structure);
  const std::vector<TensorSpec> tensors = opt_tensors(info.config, info.head);
  check_tensors(source, tensors);
  const DType dtype = options.dtype ? *options.dtype : info.dtype;

  const InterruptGuard guard;
  TemporaryPath out(free_place(folder), PathKind::folder);
  write_texts(info, dtype, out.path());
  write_weights(source, cut_into_shards(tensors, dtype, options.max_shard_size), out.path());
  out.publish();
}

}  // namespace tercet
