#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "model/model_file.h"
#include "store/hdf5_file.h"

namespace tercet {
namespace {

const char* head_words(Head head) { return head == Head::scalar ? "reward model" : "language model"; }

Json shape_json(const std::vector<int64_t>& shape) {
  Json json = Json::array();
  for (const int64_t size : shape) json.push_back(size);
  return json;
}

int64_t parameters(const Hdf5Reader& file) {
  int64_t sum = 0;
  for (const TensorInfo& tensor : file.tensors()) sum += tensor.elements();
  return sum;
}

Json describe(const std::string& path, const ModelInfo& info, const Hdf5Reader& file) {
  Json json = Json::object();
  json.set("file", path).set("bytes", file.file_bytes()).set("checksum", file.checksum());
  json.set("verified", file.verified());
  json.set("kind", head_words(info.head)).set("parameters", parameters(file)).set("dtype", dtype_name(info.dtype));
  json.set("prompt_template", info.prompt_template);
  if (info.affine) {
    Json affine = Json::object();
    affine.set("mean", info.affine->mean).set("sd", info.affine->sd);
    json.set("score", std::move(affine));
  }
  json.set("config", info.config.to_json()).set("provenance", info.provenance);
  Json tensors = Json::array();
  for (const TensorInfo& tensor : file.tensors()) {
    Json entry = Json::object();
    entry.set("name", tensor.name).set("dtype", dtype_name(tensor.dtype)).set("shape", shape_json(tensor.shape));
    tensors.push_back(std::move(entry));
  }
  json.set("tensors", std::move(tensors));
  return json;
}

std::string plain(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

void print_members(const char* heading, const Json& object) {
  fmt::print("\n{}\n", heading);
  for (const auto& [name, value] : object.as_object()) fmt::print("  {:<32} {}\n", name, plain(value));
}

void print_table(const Json& json) {
  for (const auto& [name, value] : json.as_object())
    if (!value.is_object() && !value.is_array()) fmt::print("{:<18} {}\n", name, plain(value));
  for (const char* part : {"score", "config", "provenance"})
    if (const Json* object = json.find(part)) print_members(part, *object);
  fmt::print("\ntensors\n");
  for (const Json& tensor : json.at("tensors").as_array())
    fmt::print("  {:<60} {:<5} {}\n", plain(tensor.at("name")), plain(tensor.at("dtype")), plain(tensor.at("shape")));
}

}  // namespace

int run_info(const InfoSettings& settings) {
  const ModelInfo info = read_model_info(settings.model);
  const Hdf5Reader file(settings.model, settings.verify ? Hdf5Verify::all : Hdf5Verify::structure);
  const Json json = describe(settings.model, info, file);
  if (settings.json)
    fmt::print("{}\n", json.dump());
  else
    print_table(json);
  return 0;
}

}  // namespace tercet
