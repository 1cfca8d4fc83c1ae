#include "model/hf_import.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "store/hdf5_file.h"
#include "store/safetensors.h"
#include "store/shard_index.h"
#include "temporary_folder.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

const std::string kGolden = TERCET_SOURCE_DIR "/tests/golden/import";

using testing::TemporaryFolder;

std::string raw_hash(const Hdf5Reader& file, const TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<size_t>(info.bytes()));
  file.read(info.name, info.dtype, bytes.data());
  return fmt::format("{:016x}", hash64(std::span<const std::byte>(bytes)));
}

TEST_CASE("every folder layout of Hugging Face OPT models is imported bit for bit, under the same names") {
  const Json golden = parse_json(read_file(kGolden + "/cases.json"), "cases.json");
  const TemporaryFolder temporary;
  for (const Json& test : golden.at("cases").as_array()) {
    const std::string name = test.at("folder").as_string();
    CAPTURE(name);
    const std::string out = temporary.path + "/" + name + ".h5";
    import_hugging_face(kGolden + "/" + name, out);

    const ModelInfo info = read_model_info(out);
    CHECK(dtype_name(info.dtype) == test.at("dtype").as_string());
    CHECK((info.head == Head::scalar) == (test.at("model") == Json("reward")));
    CHECK(info.config.hidden_size == 8);
    const Hdf5Reader file(out);
    const Json& contents = golden.at("contents").at(test.at("contents").as_string());
    CHECK(file.tensors().size() == contents.as_object().size());
    for (const auto& [key, expected] : contents.as_object()) {
      const std::string tensor = key;
      CAPTURE(tensor);
      const TensorInfo& found = file.at(tensor);
      CHECK(dtype_name(found.dtype) == test.at("dtype").as_string());
      Json shape = Json::array();
      for (const int64_t size : found.shape) shape.push_back(size);
      CHECK(shape == expected.at("shape"));
      CHECK(raw_hash(file, found) == expected.at("xxh3_64").as_string());
    }
    const Tokenizer tokenizer = info.tokenizer(out);
    for (const Json& sample : golden.at("tokenizer_samples").as_array()) {
      Json ids = Json::array();
      for (const int32_t id : tokenizer.encode(sample.at("text").as_string())) ids.push_back(int64_t{id});
      CHECK(ids == sample.at("ids"));
    }
  }
}

// A tensor of a folder that a test alters.
struct EditableTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, EditableTensor>;

Tensors read_tensors(const std::string& folder) {
  const auto source = open_weights(folder);
  Tensors tensors;
  for (const TensorInfo& info : source->tensors())
    tensors[info.name] = {DType::f32, info.shape, source->read_vector<float>(info.name)};
  return tensors;
}

void write_tensors(const std::string& folder, const Tensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder + "/model.safetensors", infos);
  for (const auto& [name, tensor] : tensors) {
    if (is_floating(tensor.dtype)) {
      writer.write(name, DType::f32, tensor.values.data());
    } else {
      const std::vector<int64_t> integers(tensor.values.begin(), tensor.values.end());
      writer.write(name, DType::i64, integers.data());
    }
  }
  writer.finish();
}

// The message of importing the fp32 fixture after `change`; "imported" when it went well.
std::string import_changed(const std::function<void(Tensors&)>& change, const ImportOptions& options = {},
                           const std::function<void(const std::string& folder)>& change_files = {}) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path + "/model";
  fs::create_directory(folder);
  for (const char* name : {"config.json", "vocab.json", "merges.txt"})
    fs::copy_file(kGolden + "/safetensors-fp32/" + name, folder + "/" + name);
  Tensors tensors = read_tensors(kGolden + "/safetensors-fp32");
  if (change) change(tensors);
  write_tensors(folder, tensors);
  if (change_files) change_files(folder);
  try {
    import_hugging_face(folder, temporary.path + "/out.h5", options);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK_FALSE(fs::exists(temporary.path + "/out.h5"));
    return error.what();
  }
  return "imported";
}

void check_message(const std::string& message, const std::string& part) {
  CHECK_MESSAGE(message.find(part) != std::string::npos, message);
}

const std::string kEmbedding = "model.decoder.embed_tokens.weight";
const std::string kBias = "model.decoder.layers.1.fc1.bias";

TEST_CASE("a tensor that is missing, extra, there twice or misshapen is named") {
  check_message(import_changed([](Tensors& t) { t.erase(kBias); }), "the tensor " + kBias + " is missing");
  check_message(import_changed([](Tensors& t) { t["model.decoder.layers.2.fc1.bias"] = t[kBias]; }),
                "the tensor model.decoder.layers.2.fc1.bias is not one of this OPT model");
  check_message(import_changed([](Tensors& t) { t["decoder.layers.1.fc1.bias"] = t[kBias]; }), "are the same tensor");
  check_message(import_changed([](Tensors& t) {
                  t[kBias].shape = {11};
                  t[kBias].values.resize(11);
                }),
                kBias + " fp32[11] does not have the shape [12] of config.json");
  check_message(import_changed([](Tensors& t) { t[kBias].shape = {12, 1}; }), "does not have the shape [12]");
  check_message(import_changed([](Tensors& t) { t[kBias].dtype = DType::i64; }),
                "does not hold floating-point numbers");
}

TEST_CASE("the tied embedding may have either name or both, and both must agree") {
  CHECK(import_changed([](Tensors& t) { t["lm_head.weight"] = t[kEmbedding]; }) == "imported");
  CHECK(import_changed([](Tensors& t) {
          t["lm_head.weight"] = t[kEmbedding];
          t.erase(kEmbedding);
        }) == "imported");
  check_message(import_changed([](Tensors& t) {
                  t["lm_head.weight"] = t[kEmbedding];
                  t["lm_head.weight"].values.back() += 1;
                }),
                kEmbedding + " and lm_head.weight differ");
  check_message(import_changed([](Tensors& t) { t.erase(kEmbedding); }), "the tensor " + kEmbedding + " is missing");
}

const std::string kAttention = "decoder.layers.0.self_attn.";

// Puts k, v and q of the first block into one tensor, as metaseq's checkpoints have them.
void fuse(Tensors& t, const std::string& kind) {
  EditableTensor fused;
  for (const char* which : {"k", "v", "q"}) {
    const EditableTensor part = t.extract("model." + kAttention + which + "_proj." + kind).mapped();
    fused.values.insert(fused.values.end(), part.values.begin(), part.values.end());
    fused.shape = part.shape;
  }
  fused.shape[0] *= 3;
  t[kAttention + "qkv_proj." + kind] = fused;
}

TEST_CASE("metaseq's names, and its fused projection in the order k, v, q, give the model of the usual names") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path + "/metaseq", plain = kGolden + "/safetensors-fp32-post-ln";
  fs::create_directory(folder);
  for (const char* name : {"config.json", "vocab.json", "merges.txt"})
    fs::copy_file(plain + "/" + name, folder + "/" + name);
  Tensors tensors = read_tensors(plain);
  const auto rename = [&](const std::string& from, const std::string& to) {
    auto node = tensors.extract("model.decoder." + from);
    REQUIRE(!node.empty());
    node.key() = "decoder." + to;
    tensors.insert(std::move(node));
  };
  for (const char* kind : {"weight", "bias"}) fuse(tensors, kind);
  rename("project_in.weight", "project_in_dim.weight");
  rename("project_out.weight", "project_out_dim.weight");
  tensors["decoder.output_projection.weight"] = tensors[kEmbedding];
  write_tensors(folder, tensors);

  import_hugging_face(plain, temporary.path + "/plain.h5");
  import_hugging_face(folder, temporary.path + "/metaseq.h5");
  const Hdf5Reader expected(temporary.path + "/plain.h5"), found(temporary.path + "/metaseq.h5");
  CHECK(found.tensors() == expected.tensors());
  for (const TensorInfo& info : expected.tensors())
    CHECK_MESSAGE(raw_hash(found, info) == raw_hash(expected, info), info.name);
}

TEST_CASE("a fused projection that is misshapen, there beside its parts or not finite is named") {
  const std::string fused = kAttention + "qkv_proj.weight";
  check_message(import_changed([&](Tensors& t) {
                  fuse(t, "weight");
                  t[fused].shape = {8, 24};
                }),
                fused + " fp32[8, 24] does not have the shape [24, 8] of config.json");
  check_message(import_changed([&](Tensors& t) {
                  t["model." + kAttention + "copy"] = t["model." + kAttention + "v_proj.weight"];
                  fuse(t, "weight");
                  auto node = t.extract("model." + kAttention + "copy");
                  node.key() = kAttention + "v_proj.weight";
                  t.insert(std::move(node));
                }),
                "are the same tensor");
  check_message(import_changed([&](Tensors& t) {
                  fuse(t, "bias");
                  t[kAttention + "qkv_proj.bias"].values[17] = NAN;
                }),
                kAttention + "qkv_proj.bias: element 17 is nan");
  CHECK(import_changed([](Tensors& t) { fuse(t, "bias"); }) == "imported");
}

TEST_CASE("a weight that is not finite is refused by name, for every type of file") {
  for (const float value : {NAN, INFINITY, -INFINITY})
    check_message(import_changed([&](Tensors& t) { t[kBias].values[3] = value; }), kBias + ": element 3 is ");
  check_message(import_changed([](Tensors& t) {
                  for (auto& [name, tensor] : t) tensor.dtype = DType::f16;
                  t[kBias].values[5] = NAN;
                }),
                kBias + ": element 5 is nan");
}

TEST_CASE("a weight beyond the range of the chosen type is refused, the largest that rounds into it is taken") {
  const ImportOptions half{.dtype = DType::f16};
  check_message(import_changed([](Tensors& t) { t[kBias].values[0] = 65520; }, half), "beyond the range of fp16");
  CHECK(import_changed([](Tensors& t) { t[kBias].values[0] = -65519; }, half) == "imported");
  const ImportOptions bfloat{.dtype = DType::bf16};
  check_message(import_changed([](Tensors& t) { t[kBias].values[0] = 3.4e38f; }, bfloat), "beyond the range of bf16");
}

TEST_CASE("weights of several types need a chosen one") {
  const auto mix = [](Tensors& t) { t[kBias].dtype = DType::f16; };
  check_message(import_changed(mix), "have different types; choose the type of all with --dtype");
  CHECK(import_changed(mix, {.dtype = DType::f32}) == "imported");
}

TEST_CASE("a chosen type converts once, to the nearest") {
  const TemporaryFolder temporary;
  const std::string out = temporary.path + "/out.h5";
  import_hugging_face(kGolden + "/safetensors-fp32", out, {.dtype = DType::bf16});
  const auto source = open_weights(kGolden + "/safetensors-fp32");
  const Hdf5Reader file(out);
  const std::vector<float> before = source->read_vector<float>(kEmbedding);
  const std::vector<float> after = file.read_vector<float>(kEmbedding);
  for (size_t i = 0; i < before.size(); ++i) CHECK(after[i] == to_float(to_bfloat16(before[i])));
}

TEST_CASE("files that do not make an OPT model are refused with the file") {
  const auto with_config = [](const std::string& text) {
    return import_changed({}, {},
                          [&](const std::string& folder) { write_file_atomically(folder + "/config.json", text); });
  };
  check_message(with_config("{"), "config.json: not valid JSON");
  check_message(with_config(R"({"model_type": "llama"})"), "config.json: model_type is \"llama\"");
  check_message(import_changed({}, {}, [](const std::string& folder) { fs::remove(folder + "/config.json"); }),
                "config.json");
  check_message(import_changed({}, {}, [](const std::string& folder) { fs::remove(folder + "/merges.txt"); }),
                "merges.txt");
  check_message(import_changed({}, {}, [](const std::string& folder) { fs::remove(folder + "/model.safetensors"); }),
                "safetensors");
}

TEST_CASE("the model file says where it came from") {
  const TemporaryFolder temporary;
  const std::string out = temporary.path + "/out.h5", folder = kGolden + "/bin-fp32";
  Json provenance = Json::object();
  provenance.set("command", "import");
  import_hugging_face(folder, out, {.prompt_template = "none", .provenance = provenance});
  const ModelInfo info = read_model_info(out);
  CHECK(info.prompt_template == "none");
  CHECK(info.provenance.at("command") == Json("import"));
  CHECK(info.provenance.at("inputs").at(folder + "/pytorch_model.bin") ==
        Json(hash_file(folder + "/pytorch_model.bin")));
}

}  // namespace
}  // namespace tercet
