#include "model/hf_import.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "model/hf_tensors.h"
#include "store/hdf5_file.h"
#include "store/shard_index.h"

namespace tercet {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;
constexpr const char* kEmbedding = "model.decoder.embed_tokens.weight";
constexpr const char* kScore = "score.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr std::string_view kFused = ".qkv_proj.";  // metaseq's

// Where a tensor of the model is in the files: the whole tensor of that name, or its part number `part` of `parts`
// equal ones along the first axis.
struct Origin {
  std::string name;
  int64_t part = 0;
  int64_t parts = 1;
};
using Origins = std::map<std::string, Origin>;  // by name in the model

// The name of a tensor in a model file; "" for one that holds no weights.
std::string canonical_name(std::string_view name) {
  if (name == kScore || name == kHead) return std::string(name);
  for (const std::string_view prefix : {"model.decoder.", "decoder."})
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  if (name == "version") return "";
  if (name == "output_projection.weight") return kHead;
  std::string rest(name);
  if (rest.starts_with("layer_norm.")) rest = "final_" + rest;
  if (rest == "project_in_dim.weight" || rest == "project_out_dim.weight") rest.erase(rest.find("_dim"), 4);
  return "model.decoder." + rest;
}

Origins find_origins(const TensorSource& source) {
  Origins origins;
  const auto add = [&](const std::string& canonical, const Origin& origin) {
    const auto [entry, added] = origins.emplace(canonical, origin);
    if (!added)
      fail_input(fmt::format("{} and {} are the same tensor", entry->second.name, origin.name), source.path(),
                 "the file must hold each tensor once");
  };
  for (const TensorInfo& info : source.tensors()) {
    const std::string canonical = canonical_name(info.name);
    if (canonical.empty()) continue;
    const size_t fused = canonical.find(kFused);
    if (fused == std::string::npos) {
      add(canonical, {info.name});
      continue;
    }
    for (int64_t part = 0; part < 3; ++part)  // metaseq's order
      add(std::string(canonical).replace(fused, kFused.size(), fmt::format(".{}_proj.", "kvq"[part])),
          {info.name, part, 3});
  }
  return origins;
}

void require_equal(const TensorSource& source, const std::string& a, const std::string& b) {
  const TensorInfo& info = source.at(a);
  bool equal = info.shape == source.at(b).shape;
  std::vector<double> part_a, part_b;
  for (int64_t first = 0; equal && first < info.elements(); first += kPartElements) {
    const int64_t count = std::min(kPartElements, info.elements() - first);
    part_a.resize(static_cast<size_t>(count));
    part_b.resize(static_cast<size_t>(count));
    source.read(a, DType::f64, first, count, part_a.data());
    source.read(b, DType::f64, first, count, part_b.data());
    equal = part_a == part_b;
  }
  if (!equal)
    fail_input(fmt::format("{} and {} differ", a, b), source.path(), "only models with a tied embedding are supported");
}

// One name is left for the token embedding, whichever of its two names the file uses.
void join_tied_embedding(const TensorSource& source, Origins& origins) {
  const auto head = origins.find(kHead);
  if (head == origins.end()) return;
  if (const auto embedding = origins.find(kEmbedding); embedding != origins.end())
    require_equal(source, embedding->second.name, head->second.name);
  else
    origins[kEmbedding] = head->second;
  origins.erase(kHead);
}

void check_tensors(const TensorSource& source, const Origins& origins, const std::vector<TensorSpec>& expected) {
  for (const TensorSpec& spec : expected) {
    const auto found = origins.find(spec.name);
    if (found == origins.end())
      fail_input(fmt::format("the tensor {} is missing", spec.name), source.path(),
                 "the weights do not belong to config.json, or a file is incomplete");
    const TensorInfo& info = source.at(found->second.name);
    std::vector<int64_t> shape = spec.shape;
    shape[0] *= found->second.parts;
    if (info.shape != shape)
      fail_input(fmt::format("{} does not have the shape {} of config.json", info.describe(), shape_text(shape)),
                 source.path(), "the weights do not belong to config.json");
    if (!is_floating(info.dtype))
      fail_input(fmt::format("{} does not hold floating-point numbers", info.describe()), source.path(),
                 "give a model that is not quantised");
  }
  for (const auto& [canonical, origin] : origins)
    if (std::ranges::find(expected, canonical, &TensorSpec::name) == expected.end())
      fail_input(fmt::format("the tensor {} is not one of this OPT model", origin.name), source.path(),
                 "the weights do not belong to config.json, or are of another kind of model");
}

DType common_dtype(const TensorSource& source, const Origins& origins) {
  const TensorInfo& first = source.at(origins.begin()->second.name);
  for (const auto& [canonical, origin] : origins)
    if (const TensorInfo& info = source.at(origin.name); info.dtype != first.dtype)
      fail_input(fmt::format("{} and {} have different types", first.describe(), info.describe()), source.path(),
                 "choose the type of all with --dtype");
  return first.dtype;
}

void write_weights(const TensorSource& source, const Origins& origins, const std::vector<TensorSpec>& expected,
                   DType dtype, Hdf5Writer& file) {
  for (const TensorSpec& spec : expected) {
    const Origin& origin = origins.at(spec.name);
    const int64_t elements = spec.elements();
    file.create({spec.name, dtype, spec.shape});
    copy_weights(source, source.at(origin.name), origin.part * elements, elements, dtype,
                 [&](int64_t first, int64_t count, DType part_dtype, const void* part) {
                   file.write_part(spec.name, first, count, part_dtype, part);
                 });
  }
}

uint64_t file_bytes(const std::vector<TensorSpec>& expected, const ModelInfo& info) {
  uint64_t elements = 0;
  for (const TensorSpec& spec : expected) elements += static_cast<uint64_t>(spec.elements());
  return elements * dtype_size(info.dtype) + info.vocab_json.size() + info.merges_txt.size() + (1 << 16);
}

double finite_number(const Json& own, const char* key, const std::string& where) {
  const Json* value = own.find(key);
  if (value == nullptr || !value->is_number() || !std::isfinite(value->as_double()))
    fail_input(fmt::format("\"tercet\": {} is not a number", key), where, "correct it or remove the key \"tercet\"");
  return value->as_double();
}

// Takes back what export_hugging_face keeps under "tercet". The score's mean and sd belong to a reward model; a
// language model that was made from one may still carry them.
void read_own_settings(const Json& config, ModelInfo& info, const std::string& where) {
  const Json* own = config.find("tercet");
  if (own == nullptr) return;
  const std::string remedy = "correct it or remove the key \"tercet\"";
  if (!own->is_object()) fail_input(fmt::format("\"tercet\" is {}", own->type_name()), where, remedy);
  if (const Json* name = own->find("prompt_template")) {
    if (*name != Json("none") && *name != Json("human-assistant"))
      fail_input(fmt::format("\"tercet\": prompt_template is {}, not none or human-assistant", name->dump()), where,
                 remedy);
    info.prompt_template = name->as_string();
  }
  if (info.head != Head::scalar || (own->find("score_mean") == nullptr && own->find("score_sd") == nullptr)) return;
  info.affine = ScoreAffine{finite_number(*own, "score_mean", where), finite_number(*own, "score_sd", where)};
  if (info.affine->sd <= 0)
    fail_input(fmt::format("\"tercet\": score_sd is {}, not above 0", info.affine->sd), where, remedy);
}

}  // namespace

void import_hugging_face(const std::string& folder, const std::string& out, const ImportOptions& options) {
  const std::string config_path = folder + "/config.json";
  const Json config = parse_json(read_file(config_path), config_path);
  ModelInfo info;
  info.config = OptConfig::from_json(config, config_path);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  require_tokenizer_fits(tokenizer, info.config, folder);

  const std::unique_ptr<TensorSource> source = open_weights(folder);
  Origins origins = find_origins(*source);
  join_tied_embedding(*source, origins);
  info.head = origins.contains(kScore) ? Head::scalar : Head::language_model;
  const std::vector<TensorSpec> expected = opt_tensors(info.config, info.head);
  check_tensors(*source, origins, expected);

  info.dtype = options.dtype ? *options.dtype : common_dtype(*source, origins);
  read_own_settings(config, info, config_path);
  if (options.prompt_template) info.prompt_template = *options.prompt_template;
  info.vocab_json = tokenizer.vocab_json();
  info.merges_txt = tokenizer.merges_txt();
  info.provenance = options.provenance;
  Json inputs = Json::object();
  inputs.set(config_path, hash_file(config_path)).set(source->path(), hash_file(source->path()));
  info.provenance.set("inputs", std::move(inputs));

  const InterruptGuard guard;
  Hdf5Writer file(out, file_bytes(expected, info));
  write_model_info(file, info, info.dtype);
  write_weights(*source, origins, expected, info.dtype, file);
  file.finish();
}

}  // namespace tercet
