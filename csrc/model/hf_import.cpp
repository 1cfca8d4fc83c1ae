#include "model/hf_import.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "store/hdf5_file.h"
#include "store/shard_index.h"

namespace tercet {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;
constexpr const char* kEmbedding = "model.decoder.embed_tokens.weight";
constexpr const char* kScore = "score.weight";
constexpr const char* kHead = "lm_head.weight";

// The name of a tensor in a model file; "" for one that holds no weights.
std::string canonical_name(std::string_view name) {
  if (name == kScore || name == kHead) return std::string(name);
  for (const std::string_view prefix : {"model.decoder.", "decoder."})
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  if (name == "version") return "";
  std::string rest(name);
  if (rest.starts_with("layer_norm.")) rest = "final_" + rest;
  return "model.decoder." + rest;
}

// Names in the file by name in the model.
std::map<std::string, std::string> map_names(const TensorSource& source) {
  std::map<std::string, std::string> names;
  for (const TensorInfo& info : source.tensors()) {
    const std::string canonical = canonical_name(info.name);
    if (canonical.empty()) continue;
    const auto [entry, added] = names.emplace(canonical, info.name);
    if (!added)
      fail_input(fmt::format("{} and {} are the same tensor", entry->second, info.name), source.path(),
                 "the file must hold each tensor once");
  }
  return names;
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
void join_tied_embedding(const TensorSource& source, std::map<std::string, std::string>& names) {
  const auto head = names.find(kHead);
  if (head == names.end()) return;
  if (const auto embedding = names.find(kEmbedding); embedding != names.end())
    require_equal(source, embedding->second, head->second);
  else
    names[kEmbedding] = head->second;
  names.erase(kHead);
}

std::vector<TensorSpec> expected_tensors(const OptConfig& config, Head head) {
  std::vector<TensorSpec> tensors;
  for (const UnitSpec& unit : opt_units(config, head))
    for (const SegmentSpec& segment : unit.segments)
      tensors.insert(tensors.end(), segment.tensors.begin(), segment.tensors.end());
  return tensors;
}

void check_tensors(const TensorSource& source, const std::map<std::string, std::string>& names,
                   const std::vector<TensorSpec>& expected) {
  for (const TensorSpec& spec : expected) {
    const auto found = names.find(spec.name);
    if (found == names.end())
      fail_input(fmt::format("the tensor {} is missing", spec.name), source.path(),
                 "the weights do not belong to config.json, or a file is incomplete");
    const TensorInfo& info = source.at(found->second);
    if (info.shape != spec.shape)
      fail_input(fmt::format("{} does not have the shape {} of config.json", info.describe(), shape_text(spec.shape)),
                 source.path(), "the weights do not belong to config.json");
    if (!is_floating(info.dtype))
      fail_input(fmt::format("{} does not hold floating-point numbers", info.describe()), source.path(),
                 "give a model that is not quantised");
  }
  for (const auto& [canonical, name] : names)
    if (std::ranges::find(expected, canonical, &TensorSpec::name) == expected.end())
      fail_input(fmt::format("the tensor {} is not one of this OPT model", name), source.path(),
                 "the weights do not belong to config.json, or are of another kind of model");
}

DType common_dtype(const TensorSource& source, const std::map<std::string, std::string>& names) {
  const TensorInfo& first = source.at(names.begin()->second);
  for (const auto& [canonical, name] : names)
    if (const TensorInfo& info = source.at(name); info.dtype != first.dtype)
      fail_input(fmt::format("{} and {} have different types", first.describe(), info.describe()), source.path(),
                 "choose the type of all with --dtype");
  return first.dtype;
}

// The smallest magnitude that rounds to infinity.
double overflow_bound(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65520;
    case DType::bf16:
      return 0x1.FFp127;
    case DType::f32:
      return 0x1.FFFFFFp127;
    default:
      return INFINITY;
  }
}

template <class T>
void require_fits(const std::vector<T>& part, int64_t first, const TensorInfo& info, DType dtype,
                  const std::string& path) {
  const double bound = overflow_bound(dtype);
  for (size_t i = 0; i < part.size(); ++i) {
    if (std::abs(static_cast<double>(part[i])) < bound) continue;
    const int64_t element = first + static_cast<int64_t>(i);
    if (!std::isfinite(part[i]))
      fail_input(fmt::format("{}: element {} is {}", info.name, element, part[i]), path,
                 "the weights are damaged; use another file");
    fail_input(
        fmt::format("{}: element {} is {}, beyond the range of {}", info.name, element, part[i], dtype_name(dtype)),
        path, "choose another --dtype");
  }
}

template <class T>
void copy_tensor(const TensorSource& source, const TensorInfo& info, Hdf5Writer& file, const TensorInfo& target) {
  file.create(target);
  std::vector<T> part;
  for (int64_t first = 0; first < info.elements(); first += kPartElements) {
    part.resize(static_cast<size_t>(std::min(kPartElements, info.elements() - first)));
    const auto count = static_cast<int64_t>(part.size());
    source.read(info.name, DTypeOf<T>::value, first, count, part.data());
    require_fits(part, first, info, target.dtype, source.path());
    file.write_part(target.name, first, count, DTypeOf<T>::value, part.data());
  }
}

void write_weights(const TensorSource& source, const std::map<std::string, std::string>& names,
                   const std::vector<TensorSpec>& expected, DType dtype, Hdf5Writer& file) {
  for (const TensorSpec& spec : expected) {
    const TensorInfo& info = source.at(names.at(spec.name));
    const TensorInfo target{spec.name, dtype, spec.shape};
    if (info.dtype == DType::f64)
      copy_tensor<double>(source, info, file, target);
    else
      copy_tensor<float>(source, info, file, target);
  }
}

uint64_t file_bytes(const std::vector<TensorSpec>& expected, const ModelInfo& info) {
  uint64_t elements = 0;
  for (const TensorSpec& spec : expected) elements += static_cast<uint64_t>(spec.elements());
  return elements * dtype_size(info.dtype) + info.vocab_json.size() + info.merges_txt.size() + (1 << 16);
}

}  // namespace

void import_hugging_face(const std::string& folder, const std::string& out, const ImportOptions& options) {
  const std::string config_path = folder + "/config.json";
  ModelInfo info;
  info.config = OptConfig::from_json(parse_json(read_file(config_path), config_path), config_path);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  require_tokenizer_fits(tokenizer, info.config, folder);

  const std::unique_ptr<TensorSource> source = open_weights(folder);
  std::map<std::string, std::string> names = map_names(*source);
  join_tied_embedding(*source, names);
  info.head = names.contains(kScore) ? Head::scalar : Head::language_model;
  const std::vector<TensorSpec> expected = expected_tensors(info.config, info.head);
  check_tensors(*source, names, expected);

  info.dtype = options.dtype ? *options.dtype : common_dtype(*source, names);
  info.prompt_template = options.prompt_template;
  info.vocab_json = tokenizer.vocab_json();
  info.merges_txt = tokenizer.merges_txt();
  info.provenance = options.provenance;
  Json inputs = Json::object();
  inputs.set(config_path, hash_file(config_path)).set(source->path(), hash_file(source->path()));
  info.provenance.set("inputs", std::move(inputs));

  Hdf5Writer file(out, file_bytes(expected, info));
  write_model_info(file, info, info.dtype);
  write_weights(*source, names, expected, info.dtype, file);
  file.finish();
}

}  // namespace tercet
