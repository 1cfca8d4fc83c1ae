#include "model/model_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/file.h"
#include "base/rng.h"
#include "store/hdf5_file.h"

namespace tercet {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;
constexpr const char* kScoreWeight = "score.weight";

const char* head_name(Head head) { return head == Head::scalar ? "scalar" : "language-model"; }

Head parse_head(const std::string& name, const std::string& path) {
  if (name == "scalar") return Head::scalar;
  if (name == "language-model") return Head::language_model;
  fail_input(fmt::format("unknown head \"{}\"", name), path, "the file was written by another version of tercet");
}

ScoreAffine parse_affine(const std::string& text, const std::string& path) {
  const Json json = parse_json(text, path);
  const Json *mean = json.find("mean"), *sd = json.find("sd");
  if (mean == nullptr || sd == nullptr || !mean->is_number() || !sd->is_number() || !(sd->as_double() > 0))
    fail_input("the mean and standard deviation of the scores are damaged", path, "use another file");
  return {mean->as_double(), sd->as_double()};
}

void for_each_tensor(const UnitSet& units, const std::function<void(const TensorSpec&)>& visit) {
  for (int u = 0; u < units.count(); ++u)
    for (const SegmentSpec& segment : units.spec(u).segments)
      for (const TensorSpec& tensor : segment.tensors) visit(tensor);
}

void require_finite(const std::vector<double>& values, int64_t first, const std::string& tensor,
                    const std::string& path) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      fail_input(fmt::format("{}: element {} is {}", tensor, first + static_cast<int64_t>(i), values[i]), path,
                 "the weights are damaged; use another file");
}

// Fills a device tensor by parts; `values(first, part)` gives elements [first, first + part.size()).
void fill_by_parts(Stream& stream, const Tensor& target,
                   const std::function<void(int64_t, std::vector<double>&)>& values) {
  std::vector<double> part;
  std::vector<std::byte> converted;
  const size_t element = dtype_size(target.dtype);
  for (int64_t first = 0; first < target.elements(); first += kPartElements) {
    part.resize(static_cast<size_t>(std::min(kPartElements, target.elements() - first)));
    values(first, part);
    converted.resize(part.size() * element);
    convert(DType::f64, part.data(), target.dtype, converted.data(), static_cast<int64_t>(part.size()));
    stream.copy_to_device(static_cast<std::byte*>(target.data) + static_cast<size_t>(first) * element, converted.data(),
                          converted.size());
    stream.synchronize();
  }
}

void fill_normal(Stream& stream, const Tensor& target, double sd, uint64_t seed, const std::string& name) {
  const RandomStream random(seed, RandomPurpose::init_weights, hash64(std::string_view(name)));
  fill_by_parts(stream, target, [&](int64_t first, std::vector<double>& part) {
    for (size_t i = 0; i < part.size(); ++i) {
      const auto index = static_cast<uint64_t>(first) + i;
      part[i] = sd * random.normal(index / 4, 0, static_cast<uint32_t>(index % 4));
    }
  });
}

void fill_constant(Stream& stream, const Tensor& target, double value) {
  fill_by_parts(stream, target,
                [&](int64_t, std::vector<double>& part) { std::fill(part.begin(), part.end(), value); });
}

double score_sd(const Tensor& weight) { return 1 / std::sqrt(static_cast<double>(weight.columns() + 1)); }

void fill_head(Stream& stream, const Tensor& target, const FreshHead& head) {
  if (head.seed)
    fill_normal(stream, target, score_sd(target), *head.seed, kScoreWeight);
  else
    fill_zero(stream, target);
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Tokenizer ModelInfo::tokenizer(const std::string& where) const {
  Tokenizer result = Tokenizer::from_texts(vocab_json, merges_txt, where);
  require_tokenizer_fits(result, config, where);
  return result;
}

ModelInfo read_model_info(const std::string& path) {
  const Hdf5Reader file(path, Hdf5Verify::structure);
  if (!file.has_text("config"))
    fail_input("the file holds no model configuration", path, "give a file made by init, import or a training step");
  ModelInfo info;
  info.config = OptConfig::from_json(parse_json(file.text("config"), path), path);
  info.head = parse_head(file.text("head"), path);
  info.prompt_template = file.text("prompt_template");
  info.vocab_json = file.text("vocab.json");
  info.merges_txt = file.text("merges.txt");
  if (file.has_text("affine")) info.affine = parse_affine(file.text("affine"), path);
  info.dtype = parse_dtype(file.text("dtype"), path);
  info.provenance = parse_json(file.text("provenance"), path);
  return info;
}

void read_weights(Stream& stream, const std::string& path, UnitSet& units, std::optional<FreshHead> fresh_head) {
  const Hdf5Reader file(path);
  std::set<std::string> known;
  for_each_tensor(units, [&](const TensorSpec& spec) {
    known.insert(spec.name);
    const Tensor target = units.exact_weight(spec.name);
    const TensorInfo* info = file.find(spec.name);
    if (info == nullptr && spec.name == kScoreWeight && fresh_head) {
      fill_head(stream, target, *fresh_head);
      return;
    }
    if (info == nullptr)
      fail_input(fmt::format("the tensor {} is missing", spec.name), path,
                 spec.name == kScoreWeight ? "a reward model is needed here; this is a language model"
                                           : "the file does not hold this model");
    if (info->shape != spec.shape)
      fail_input(
          fmt::format("{} does not have the shape {} of the configuration", info->describe(), shape_text(spec.shape)),
          path, "the file does not hold this model");
    fill_by_parts(stream, target, [&](int64_t first, std::vector<double>& part) {
      file.read(spec.name, DType::f64, first, static_cast<int64_t>(part.size()), part.data());
      require_finite(part, first, spec.name, path);
    });
  });
  units.round_weights(stream);
  for (const TensorInfo& info : file.tensors())
    if (!known.contains(info.name))
      fail_input(fmt::format("the tensor {} is not one of this model", info.name), path,
                 info.name == kScoreWeight ? "a language model is needed here; this is a reward model"
                                           : "the file does not hold this model");
}

void write_model_info(Hdf5Writer& file, const ModelInfo& info, DType dtype) {
  file.set_text("config", info.config.to_json().dump(2));
  file.set_text("head", head_name(info.head));
  file.set_text("prompt_template", info.prompt_template);
  file.set_text("vocab.json", info.vocab_json);
  file.set_text("merges.txt", info.merges_txt);
  if (info.affine) {
    Json affine = Json::object();
    affine.set("mean", info.affine->mean).set("sd", info.affine->sd);
    file.set_text("affine", affine.dump());
  }
  file.set_text("dtype", dtype_name(dtype));
  file.set_text("provenance", info.provenance.dump(2));
}

void write_model(Stream& stream, const std::string& path, const ModelInfo& info, UnitSet& units, DType dtype) {
  const uint64_t bytes = static_cast<uint64_t>(units.parameters()) * dtype_size(dtype) + info.vocab_json.size() +
                         info.merges_txt.size() + (1 << 16);
  Hdf5Writer file(path, bytes);
  write_model_info(file, info, dtype);
  std::vector<std::byte> host;
  for_each_tensor(units, [&](const TensorSpec& spec) {
    const Tensor source = units.exact_weight(spec.name);
    const TensorInfo tensor{spec.name, dtype, spec.shape};
    file.create(tensor);
    for (int64_t first = 0; first < source.elements(); first += kPartElements) {
      const int64_t count = std::min(kPartElements, source.elements() - first);
      const size_t element = dtype_size(source.dtype);
      host.resize(static_cast<size_t>(count) * element);
      stream.copy_to_host(
          host.data(), static_cast<const std::byte*>(source.data) + static_cast<size_t>(first) * element, host.size());
      stream.synchronize();
      file.write_part(spec.name, first, count, source.dtype, host.data());
    }
  });
  file.finish();
}

void init_weights(Stream& stream, UnitSet& units, const OptConfig& config, uint64_t seed) {
  for_each_tensor(units, [&](const TensorSpec& spec) {
    const Tensor target = units.exact_weight(spec.name);
    const bool norm = spec.name.find("layer_norm") != std::string::npos;
    if (spec.name == kScoreWeight) {
      fill_head(stream, target, {seed});
    } else if (ends_with(spec.name, ".bias")) {
      fill_constant(stream, target, 0);
    } else if (norm) {
      fill_constant(stream, target, 1);
    } else {
      fill_normal(stream, target, config.init_std, seed, spec.name);
    }
    if (ends_with(spec.name, "embed_tokens.weight") && config.pad_token_id < config.vocab_size)
      fill_constant(stream, target.row_range(config.pad_token_id, 1), 0);
  });
  units.round_weights(stream);
}

void require_tokenizer_fits(const Tokenizer& tokenizer, const OptConfig& config, const std::string& where) {
  if (tokenizer.size() > config.vocab_size)
    fail_input(fmt::format("the tokenizer has ids up to {} but the model's vocabulary has {} entries",
                           tokenizer.size() - 1, config.vocab_size),
               where, "use the tokenizer that belongs to the model");
}

}  // namespace tercet
