#include "model/hf_export.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "model/hf_import.h"
#include "model/hf_tensors.h"
#include "store/hdf5_file.h"
#include "store/safetensors.h"
#include "store/shard_index.h"
#include "temporary_folder.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

const std::string kGolden = TERCET_SOURCE_DIR "/tests/golden";
const std::string kBias = "model.decoder.layers.1.fc1.bias";

using testing::TemporaryFolder;

Json read_json(const std::string& path) { return parse_json(read_file(path), path); }

std::vector<std::byte> raw_bytes(const TensorSource& source, const TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<size_t>(info.bytes()));
  source.read(info.name, info.dtype, bytes.data());
  return bytes;
}

// Both hold the same tensors, with the same dtypes, shapes and bytes.
void check_same_tensors(const TensorSource& a, const TensorSource& b) {
  CHECK(a.tensors().size() == b.tensors().size());
  for (const TensorInfo& info : a.tensors()) {
    CAPTURE(info.name);
    REQUIRE(b.find(info.name) != nullptr);
    CHECK(*b.find(info.name) == info);
    CHECK(raw_bytes(a, info) == raw_bytes(b, info));
  }
}

// The model files agree in all but their provenance.
void check_same_model(const std::string& a, const std::string& b) {
  const ModelInfo x = read_model_info(a), y = read_model_info(b);
  CHECK(x.config == y.config);
  CHECK(x.head == y.head);
  CHECK(x.dtype == y.dtype);
  CHECK(x.prompt_template == y.prompt_template);
  CHECK(x.vocab_json == y.vocab_json);
  CHECK(x.merges_txt == y.merges_txt);
  REQUIRE(x.affine.has_value() == y.affine.has_value());
  if (x.affine) CHECK(x.affine->mean == y.affine->mean);
  if (x.affine) CHECK(x.affine->sd == y.affine->sd);
  check_same_tensors(Hdf5Reader(a), Hdf5Reader(b));
}

using Weights = std::map<std::string, std::vector<float>>;

Weights read_weights_of(const TensorSource& source) {
  Weights weights;
  for (const TensorInfo& info : source.tensors()) weights[info.name] = source.read_vector<float>(info.name);
  return weights;
}

void write_model_file(const std::string& path, const ModelInfo& info, const Weights& weights) {
  Hdf5Writer file(path, 1 << 20);
  write_model_info(file, info, info.dtype);
  for (const TensorSpec& spec : opt_tensors(info.config, info.head))
    file.write({spec.name, info.dtype, spec.shape}, DType::f32, weights.at(spec.name).data());
  file.finish();
}

std::string import_fixture(const TemporaryFolder& temporary, const std::string& name,
                           const ImportOptions& options = {}) {
  const std::string file = temporary / (name + ".h5");
  import_hugging_face(kGolden + "/import/" + name, file, options);
  return file;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST_CASE("from Hugging Face and back every tensor keeps its bytes, and imported again the model is the same") {
  const Json golden = read_json(kGolden + "/import/cases.json");
  for (const Json& test : golden.at("cases").as_array()) {
    const std::string name = test.at("folder").as_string();
    CAPTURE(name);
    const TemporaryFolder temporary;
    const std::string file = import_fixture(temporary, name), folder = temporary / "exported";
    export_hugging_face(file, folder);

    const SafetensorsReader weights(folder + "/model.safetensors");
    CHECK(weights.metadata() == SafetensorsMetadata{{"format", "pt"}});
    const Json& contents = golden.at("contents").at(test.at("contents").as_string());
    CHECK(weights.tensors().size() == contents.as_object().size());
    for (const TensorInfo& info : weights.tensors()) {
      CAPTURE(info.name);
      CHECK(dtype_name(info.dtype) == test.at("dtype").as_string());
      CHECK(fmt::format("{:016x}", hash64(std::span<const std::byte>(raw_bytes(weights, info)))) ==
            contents.at(info.name).at("xxh3_64").as_string());
    }
    if (test.at("tokenizer") == Json("vocab.json"))
      for (const std::string text : {"/vocab.json", "/merges.txt"})
        CHECK(read_file(folder + text) == read_file(kGolden + "/import/" + name + text));

    const std::string again = temporary / "again.h5";
    import_hugging_face(folder, again);
    check_same_model(file, again);
  }
}

TEST_CASE("the golden models and their reward models are exported in every type with the values that they have") {
  for (const std::string name : {"pre_ln", "post_ln", "gelu", "head80"})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const Head head : {Head::language_model, Head::scalar}) {
        CAPTURE(name);
        CAPTURE(dtype_name(dtype));
        const std::string source = kGolden + "/models/" + name;
        const SafetensorsReader original(source + "/model.safetensors"), more(source + "/golden.safetensors");
        Weights weights = read_weights_of(original);
        weights["score.weight"] = more.read_vector<float>("score.weight");
        ModelInfo info;
        info.config = OptConfig::from_json(read_json(source + "/config.json"), source);
        info.head = head;
        info.dtype = dtype;
        const TemporaryFolder temporary;
        write_model_file(temporary / "m.h5", info, weights);
        export_hugging_face(temporary / "m.h5", temporary / "exported");

        const SafetensorsReader exported(temporary / "exported/model.safetensors");
        CHECK(exported.tensors().size() == original.tensors().size() + (head == Head::scalar ? 1 : 0));
        for (const TensorInfo& tensor : exported.tensors()) {
          CAPTURE(tensor.name);
          CHECK(tensor.dtype == dtype);
          CHECK(tensor.shape == (tensor.name == "score.weight" ? more : original).at(tensor.name).shape);
          CHECK(exported.read_vector<float>(tensor.name) == weights.at(tensor.name));
        }
        const Json config = read_json(temporary / "exported/config.json");
        CHECK(OptConfig::from_json(config, "config.json") == info.config);
      }
}

TEST_CASE("the folder says what transformers asks: the class, the type, special tokens and ids") {
  const TemporaryFolder temporary;
  export_hugging_face(import_fixture(temporary, "safetensors-fp16-gelu"), temporary / "lm");
  Json config = read_json(temporary / "lm/config.json");
  CHECK(config.at("architectures") == Json(Json::Array{Json("OPTForCausalLM")}));
  CHECK(config.at("dtype") == Json("float16"));
  CHECK(config.at("torch_dtype") == Json("float16"));
  CHECK(config.at("use_cache") == Json(true));
  CHECK(config.at("pad_token_id") == Json(1));
  CHECK(config.find("id2label") == nullptr);
  CHECK(read_json(temporary / "lm/generation_config.json").dump() ==
        R"({"bos_token_id":2,"eos_token_id":2,"pad_token_id":1})");
  const Json tokenizer = read_json(temporary / "lm/tokenizer_config.json");
  CHECK(tokenizer.at("tokenizer_class") == Json("GPT2Tokenizer"));
  CHECK(tokenizer.at("add_bos_token") == Json(true));
  CHECK(tokenizer.at("add_prefix_space") == Json(false));
  CHECK(tokenizer.at("errors") == Json("replace"));
  CHECK(tokenizer.at("model_max_length") == Json(14));
  CHECK(read_json(temporary / "lm/special_tokens_map.json").dump() ==
        R"({"bos_token":"</s>","eos_token":"</s>","unk_token":"</s>","pad_token":"<pad>"})");

  export_hugging_face(import_fixture(temporary, "safetensors-fp32-reward"), temporary / "rm", {.dtype = DType::bf16});
  config = read_json(temporary / "rm/config.json");
  CHECK(config.at("architectures") == Json(Json::Array{Json("OPTForSequenceClassification")}));
  CHECK(config.at("dtype") == Json("bfloat16"));
  CHECK(config.at("id2label").dump() == R"({"0":"reward"})");
  CHECK(config.at("label2id").dump() == R"({"reward":0})");
  CHECK_FALSE(fs::exists(temporary / "rm/generation_config.json"));
}

TEST_CASE("template and affine of the scores return on import, unless --template says otherwise") {
  const TemporaryFolder temporary;
  const std::string imported = import_fixture(temporary, "safetensors-fp32-reward", {.prompt_template = "none"});
  ModelInfo info = read_model_info(imported);
  info.affine = ScoreAffine{-0.1234567890123456, 1.0 / 3};
  const std::string file = temporary / "reward.h5", folder = temporary / "exported", again = temporary / "again.h5";
  write_model_file(file, info, read_weights_of(Hdf5Reader(imported)));
  export_hugging_face(file, folder);
  CHECK(read_json(folder + "/config.json").at("tercet").at("prompt_template") == Json("none"));
  import_hugging_face(folder, again);
  check_same_model(file, again);
  import_hugging_face(folder, again, {.prompt_template = "human-assistant"});
  CHECK(read_model_info(again).prompt_template == "human-assistant");
  CHECK(read_model_info(again).affine->sd == 1.0 / 3);

  SUBCASE("a language model made from the reward model has no scores") {
    Weights weights = read_weights_of(Hdf5Reader(imported));
    std::vector<TensorInfo> infos;
    for (const TensorSpec& spec : opt_tensors(info.config, Head::language_model))
      infos.push_back({spec.name, DType::f32, spec.shape});
    SafetensorsWriter writer(folder + "/model.safetensors", infos);
    for (const TensorInfo& tensor : infos) writer.write(tensor.name, DType::f32, weights.at(tensor.name).data());
    writer.finish();
    import_hugging_face(folder, again);
    CHECK_FALSE(read_model_info(again).affine);
    CHECK(read_model_info(again).prompt_template == "none");
  }
}

// The message of importing an exported reward model whose key "tercet" was replaced; "imported" when it went well.
std::string import_with_own_settings(const std::string& text) {
  const TemporaryFolder temporary;
  const std::string folder = temporary / "exported";
  export_hugging_face(import_fixture(temporary, "safetensors-fp32-reward"), folder);
  Json config = read_json(folder + "/config.json");
  config.set("tercet", parse_json(text, "text"));
  write_file_atomically(folder + "/config.json", config.dump());
  try {
    import_hugging_face(folder, temporary / "out.h5");
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK_FALSE(fs::exists(temporary / "out.h5"));
    return error.what();
  }
  return "imported";
}

void check_message(const std::string& message, const std::string& part) {
  CHECK_MESSAGE(message.find(part) != std::string::npos, message);
}

TEST_CASE("settings of tercet in config.json that make no sense are refused") {
  CHECK(import_with_own_settings("{}") == "imported");
  CHECK(import_with_own_settings(R"({"score_mean": 1, "score_sd": 2})") == "imported");
  check_message(import_with_own_settings("3"), "config.json: \"tercet\" is");
  check_message(import_with_own_settings(R"({"prompt_template": "chatml"})"), "prompt_template is \"chatml\"");
  check_message(import_with_own_settings(R"({"prompt_template": 1})"), "prompt_template is 1");
  check_message(import_with_own_settings(R"({"score_mean": 1})"), "score_sd is not a number");
  check_message(import_with_own_settings(R"({"score_sd": 1})"), "score_mean is not a number");
  check_message(import_with_own_settings(R"({"score_mean": "nan", "score_sd": 1})"), "score_mean is not a number");
  check_message(import_with_own_settings(R"({"score_mean": 0, "score_sd": 0})"), "score_sd is 0, not above 0");
}

TEST_CASE("a chosen type converts once, to the nearest") {
  const TemporaryFolder temporary;
  const std::string file = import_fixture(temporary, "safetensors-fp32");
  const Hdf5Reader before(file);
  export_hugging_face(file, temporary / "bf16", {.dtype = DType::bf16});
  export_hugging_face(file, temporary / "fp64", {.dtype = DType::f64});
  const SafetensorsReader narrow(temporary / "bf16/model.safetensors"), wide(temporary / "fp64/model.safetensors");
  for (const TensorInfo& info : before.tensors()) {
    CHECK(narrow.at(info.name).dtype == DType::bf16);
    CHECK(wide.at(info.name).dtype == DType::f64);
    const std::vector<float> values = before.read_vector<float>(info.name);
    const std::vector<BFloat16> rounded = narrow.read_vector<BFloat16>(info.name);
    for (size_t i = 0; i < values.size(); ++i) CHECK(rounded[i].bits == to_bfloat16(values[i]).bits);
    CHECK(wide.read_vector<float>(info.name) == values);
  }
}

TEST_CASE("weights beyond the largest shard are cut into files that the index lists") {
  const TemporaryFolder temporary;
  const std::string file = import_fixture(temporary, "safetensors-fp32"), folder = temporary / "exported";
  export_hugging_face(file, folder, {.max_shard_size = 1000});

  const Json index = read_json(folder + "/model.safetensors.index.json");
  std::map<std::string, std::vector<TensorInfo>> shards;
  int64_t elements = 0;
  for (const auto& [name, shard] : index.at("weight_map").as_object()) {
    const SafetensorsReader reader(folder + "/" + shard.as_string());
    shards[shard.as_string()].push_back(reader.at(name));
    elements += reader.at(name).elements();
  }
  CHECK(index.at("metadata").at("total_parameters") == Json(elements));
  CHECK(index.at("metadata").at("total_size") == Json(4 * elements));
  size_t number = 0;
  bool above = false;
  for (const auto& [name, tensors] : shards) {
    CHECK(name == fmt::format("model-{:05}-of-{:05}.safetensors", ++number, shards.size()));
    CHECK(SafetensorsReader(folder + "/" + name).tensors().size() == tensors.size());
    int64_t bytes = 0;
    for (const TensorInfo& info : tensors) bytes += info.bytes();
    CHECK((bytes <= 1000 || tensors.size() == 1));
    above = above || bytes > 1000;
  }
  CHECK(shards.size() > 3);
  CHECK(above);  // the embedding
  CHECK_FALSE(fs::exists(folder + "/model.safetensors"));

  check_same_tensors(Hdf5Reader(file), *open_weights(folder));
  import_hugging_face(folder, temporary / "again.h5");
  check_same_model(file, temporary / "again.h5");
}

TEST_CASE("weights as large as the largest shard are one file, one byte more are two") {
  const TemporaryFolder temporary;
  const std::string file = import_fixture(temporary, "safetensors-fp32");
  const Hdf5Reader source(file);
  uint64_t bytes = 0;
  for (const TensorInfo& info : source.tensors()) bytes += static_cast<uint64_t>(info.bytes());
  export_hugging_face(file, temporary / "one", {.max_shard_size = bytes});
  export_hugging_face(file, temporary / "two", {.max_shard_size = bytes - 1});
  CHECK(fs::exists(temporary / "one/model.safetensors"));
  CHECK(fs::exists(temporary / "two/model-00002-of-00002.safetensors"));
}

TEST_CASE("sizes of shards are bytes or decimal units") {
  CHECK(parse_shard_size("1") == 1);
  CHECK(parse_shard_size("8KB") == 8'000);
  CHECK(parse_shard_size("20MB") == 20'000'000);
  CHECK(parse_shard_size("5GB") == 5'000'000'000);
  for (const char* text : {"", "0", "0GB", "-1", "+1", "5 GB", "5gb", "5TB", "GB", "1.5GB", "5GBx", " 5",
                           "9223372036854775808", "99999999999999999999", "18446744074GB"})
    CHECK_MESSAGE(!parse_shard_size(text), text);
}

// The message of exporting `file` to `folder`; "exported" when it went well.
std::string message_of_export(const std::string& file, const std::string& folder, const ExportOptions& options = {}) {
  try {
    export_hugging_face(file, folder, options);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "exported";
}

TEST_CASE("only a new or an empty folder is written to, and what is there stays") {
  const TemporaryFolder temporary;
  const std::string file = import_fixture(temporary, "safetensors-fp32"), folder = temporary / "full";
  fs::create_directory(folder);
  write_file_atomically(folder + "/notes.txt", "mine");
  const std::string taken = folder + ": the folder is not empty; choose another --out, or remove it first";
  CHECK(message_of_export(file, folder) == taken);
  CHECK(names_in(folder) == std::set<std::string>{"notes.txt"});
  check_message(message_of_export(file, folder + "/notes.txt"), "notes.txt: there is a file of this name");
  CHECK(read_file(folder + "/notes.txt") == "mine");
  check_message(message_of_export(file, temporary / "none/deeper"), "there is no folder " + temporary.path + "/none");
  CHECK(names_in(temporary.path) == std::set<std::string>{"full", "safetensors-fp32.h5"});

  fs::create_directory(temporary / "empty");
  fs::create_directory(temporary / "linked");
  fs::create_symlink(temporary / "linked", temporary / "link");
  const std::string roundabout = "../" + fs::path(temporary.path).filename().string() + "/x";
  for (const std::string& name : std::set<std::string>{"empty", "link", "new/", roundabout})
    CHECK(message_of_export(file, temporary / name) == "exported");
  CHECK(fs::is_symlink(temporary / "link"));
  for (const std::string name : {"empty", "linked", "new", "x"})
    CHECK(names_in(temporary / name) == std::set<std::string>{"config.json", "generation_config.json", "merges.txt",
                                                              "model.safetensors", "special_tokens_map.json",
                                                              "tokenizer_config.json", "vocab.json"});
  CHECK(names_in(temporary.path).size() == 7);
}

// The message of exporting the fp32 fixture after `change`, which leaves nothing behind.
std::string export_changed(const std::function<void(Weights&)>& change, const ExportOptions& options = {}) {
  const TemporaryFolder temporary;
  const std::string imported = import_fixture(temporary, "safetensors-fp32"), file = temporary / "m.h5";
  Weights weights = read_weights_of(Hdf5Reader(imported));
  change(weights);
  write_model_file(file, read_model_info(imported), weights);
  fs::remove(imported);
  const std::string message = message_of_export(file, temporary / "exported", options);
  if (message != "exported") CHECK(names_in(temporary.path) == std::set<std::string>{"m.h5"});
  return message;
}

TEST_CASE("a weight that is not finite or beyond the range of the type is refused by name, and nothing is left") {
  const ExportOptions half{.dtype = DType::f16};
  check_message(export_changed([](Weights& w) { w[kBias][3] = NAN; }), kBias + ": element 3 is nan");
  check_message(export_changed([](Weights& w) { w[kBias][3] = -INFINITY; }), kBias + ": element 3 is -inf");
  check_message(export_changed([](Weights& w) { w[kBias][2] = -65520; }, half),
                "m.h5: " + kBias + ": element 2 is -65520, beyond the range of fp16; choose another --dtype");
  CHECK(export_changed([](Weights& w) { w[kBias][2] = -65519; }, half) == "exported");
  CHECK(export_changed([](Weights& w) { w[kBias][2] = -65520; }) == "exported");
  check_message(export_changed([](Weights& w) { w[kBias][0] = 3.4e38f; }, {.dtype = DType::bf16}),
                "beyond the range of bf16");
}

TEST_CASE("a file that holds no whole model is refused") {
  const TemporaryFolder temporary;
  const std::string imported = import_fixture(temporary, "safetensors-fp32"), out = temporary / "exported";
  const ModelInfo info = read_model_info(imported);
  const Hdf5Reader original(imported);
  const auto message_with = [&](const std::function<void(Hdf5Writer&)>& write) {
    Hdf5Writer file(temporary / "m.h5", 1 << 20);
    write(file);
    file.finish();
    return message_of_export(temporary / "m.h5", out);
  };
  // All tensors, but `changed` as write_changed does it.
  const auto message_changed = [&](const std::string& changed, const std::function<void(Hdf5Writer&)>& write_changed) {
    return message_with([&](Hdf5Writer& file) {
      write_model_info(file, info, info.dtype);
      for (const TensorInfo& tensor : original.tensors())
        if (tensor.name != changed) file.write(tensor, raw_bytes(original, tensor).data());
      write_changed(file);
    });
  };
  const std::vector<double> values(16);
  const std::vector<int32_t> integers(16);
  CHECK(message_changed(kBias, [&](Hdf5Writer& file) {
          file.write({kBias, DType::f64, {12}}, values.data());
        }) == "exported");
  fs::remove_all(out);
  check_message(message_changed(kBias, [](Hdf5Writer&) {}), "m.h5: the tensor " + kBias + " is missing");
  check_message(message_changed(kBias,
                                [&](Hdf5Writer& file) {
                                  file.write({kBias, DType::f64, {16}}, values.data());
                                }),
                "is not a floating-point tensor of the shape [12]");
  check_message(message_changed(kBias,
                                [&](Hdf5Writer& file) {
                                  file.write({kBias, DType::i32, {12}}, integers.data());
                                }),
                "is not a floating-point tensor of the shape [12]");
  check_message(message_changed("",
                                [&](Hdf5Writer& file) {
                                  file.write({"extra", DType::f64, {16}}, values.data());
                                }),
                "the tensor extra is not one of this model");
  check_message(message_with([&](Hdf5Writer& file) {
                  file.write({"x", DType::f64, {16}}, values.data());
                }),
                "holds no model configuration");
  write_file_atomically(temporary / "text.h5", "not a model");
  check_message(message_of_export(temporary / "text.h5", out), "text.h5: ");
  check_message(message_of_export(temporary / "absent.h5", out), "absent.h5: cannot open the file");
  CHECK(names_in(temporary.path) == std::set<std::string>{"m.h5", "safetensors-fp32.h5", "text.h5"});
}

#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory
// Bytes of a line of /proc/self/status.
int64_t process_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stoll(line.substr(key.size() + 1));
  return 0;
}

// How far `work` raises the process's resident memory at its peak.
int64_t peak_bytes(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = process_status("VmRSS");
  work();
  return process_status("VmHWM") - before;
}

TEST_CASE("neither export nor import holds a model in memory") {
  const TemporaryFolder temporary;
  ModelInfo info = read_model_info(import_fixture(temporary, "safetensors-fp32"));
  info.config = OptConfig::from_json(
      parse_json(R"({"vocab_size": 272, "hidden_size": 512, "num_hidden_layers": 12, "ffn_dim": 2048,)"
                 R"( "num_attention_heads": 8})",
                 "config"),
      "config");
  const std::string file = temporary / "m.h5", folder = temporary / "exported";
  const std::vector<float> values(2048 * 512, 0.5f);
  Hdf5Writer writer(file, static_cast<uint64_t>(4 * info.config.parameters()) + (1 << 20));
  write_model_info(writer, info, info.dtype);
  for (const TensorSpec& spec : opt_tensors(info.config, info.head)) {
    writer.create({spec.name, info.dtype, spec.shape});
    for (int64_t first = 0; first < spec.elements(); first += std::ssize(values))
      writer.write_part(spec.name, first, std::min(std::ssize(values), spec.elements() - first), DType::f32,
                        values.data());
  }
  writer.finish();
  constexpr int64_t limit = 64 << 20;
  REQUIRE(4 * info.config.parameters() > 2 * limit);
  CHECK(peak_bytes([&] { export_hugging_face(file, folder); }) < limit);
  CHECK(peak_bytes([&] { import_hugging_face(folder, temporary / "again.h5"); }) < limit);
}
#endif

}  // namespace
}  // namespace tercet
