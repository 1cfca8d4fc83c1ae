// A folder of good files and of the ways in which they can be bad, for tests of what a user is told.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <map>

#include "app/program.h"
#include "store/hdf5_file.h"

namespace tercet {

// Copies a tercet file; the changes are what tells the copies apart.
struct ModelChange {
  std::string nan_in;                        // a tensor whose second element becomes NaN
  std::string without;                       // a tensor that is left out
  std::string with;                          // a tensor that is added
  std::map<std::string, std::string> texts;  // texts that become others; an empty one is left out
};

inline void copy_model(const std::string& from, const std::string& to, const ModelChange& change) {
  const Hdf5Reader source(from);
  Hdf5Writer writer(to, source.file_bytes());
  for (const std::string& key : source.text_keys()) {
    const auto changed = change.texts.find(key);
    const std::string text = changed == change.texts.end() ? source.text(key) : changed->second;
    if (changed == change.texts.end() || !text.empty()) writer.set_text(key, text);
  }
  for (const TensorInfo& info : source.tensors()) {
    if (info.name == change.without) continue;
    std::vector<float> values = source.read_vector<float>(info.name);
    if (info.name == change.nan_in) values.at(1) = std::numeric_limits<float>::quiet_NaN();
    writer.write(info, DType::f32, values.data());
  }
  const float one = 1;
  if (!change.with.empty()) writer.write({change.with, DType::f32, {1}}, &one);
  writer.finish();
}

// A text with the one occurrence of `from` replaced.
inline std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

class BadFiles {
 public:
  BadFiles() {
    make_models();
    make_folders();
    make_data();
    make_configurations();
  }

  std::string path(const std::string& name) const { return folder_.path + "/" + name; }
  const std::string& path() const { return folder_.path; }

  // Every file and folder below, with size and hash.
  std::map<std::string, std::string> listing() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path))
      all[entry.path().string()] = entry.is_regular_file()
                                       ? fmt::format("{} {}", entry.file_size(), hash_file(entry.path().string()))
                                       : "folder";
    return all;
  }

 private:
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string read(const std::string& name) const { return read_file(path(name)); }

  void make_models() {
    std::filesystem::rename(make_model(folder_), path("lm.h5"));
    const std::string good = read("lm.h5");
    const std::string config = Hdf5Reader(path("lm.h5")).text("config");
    make_reward_model();
    const std::string fc1 = "model.decoder.layers.1.fc1.weight";
    copy_model(path("lm.h5"), path("nan.h5"), {.nan_in = fc1});
    copy_model(path("rm.h5"), path("nan-rm.h5"), {.nan_in = "score.weight"});
    copy_model(path("lm.h5"), path("missing.h5"), {.without = fc1});
    copy_model(path("lm.h5"), path("extra.h5"), {.with = "model.decoder.layers.2.fc1.weight"});
    copy_model(path("lm.h5"), path("no-config.h5"), {.texts = {{"config", ""}}});
    copy_model(path("lm.h5"), path("bad-config.h5"), {.texts = {{"config", "{"}}});
    copy_model(path("lm.h5"), path("other-sizes.h5"),
               {.texts = {{"config", edited(config, "\"ffn_dim\": 32", "\"ffn_dim\": 48")}}});
    copy_model(path("lm.h5"), path("small-vocabulary.h5"),
               {.texts = {{"config", edited(config, "\"vocab_size\": 272", "\"vocab_size\": 200")}}});
    copy_model(path("lm.h5"), path("bad-head.h5"), {.texts = {{"head", "three"}}});
    copy_model(path("rm.h5"), path("other-tokenizer-rm.h5"), {.texts = {{"merges.txt", "#version: 0.2\n"}}});
    copy_model(path("rm.h5"), path("no-affine-rm.h5"), {.texts = {{"affine", ""}}});
    copy_model(path("rm.h5"), path("bad-affine-rm.h5"), {.texts = {{"affine", "{\"mean\": 0}"}}});
    write("truncated.h5", good.substr(0, good.size() - 100));
    write("longer.h5", good + "x");
    write("flipped-block.h5", flipped(good, 20));
    write("flipped-structure.h5", flipped(good, good.find("HDF\r\n") + 60));
    write("flipped.h5", flipped(good, good.size() - 200));
    write("unfinished.h5", std::string(512, '\0') + good.substr(512));
    write("empty.h5", "");
    write("text.h5", "not a model\n");
    std::filesystem::copy_file(TERCET_SOURCE_DIR "/tests/golden/store/foreign.h5", path("foreign.h5"));
  }

  // The language model with a scalar head and the mean and standard deviation of its scores.
  void make_reward_model() const {
    const Hdf5Reader source(path("lm.h5"));
    Hdf5Writer writer(path("rm.h5"), source.file_bytes());
    for (const std::string& key : source.text_keys()) writer.set_text(key, key == "head" ? "scalar" : source.text(key));
    writer.set_text("affine", R"({"mean": 0.5, "sd": 2.0})");
    for (const TensorInfo& info : source.tensors())
      writer.write(info, DType::f32, source.read_vector<float>(info.name).data());
    const std::vector<float> score(16, 0.1f);
    writer.write({"score.weight", DType::f32, {1, 16}}, score.data());
    writer.finish();
  }

  static std::string flipped(std::string bytes, size_t at) {
    bytes.at(at) = static_cast<char>(bytes[at] ^ 4);
    return bytes;
  }

  // A golden Hugging Face folder in which one file has other contents; without any the file is taken away.
  void make_folder(const std::string& name, const std::string& golden, const std::string& file,
                   const std::function<std::string(const std::string&)>& change) const {
    std::filesystem::copy(TERCET_SOURCE_DIR "/tests/golden/import/" + golden, path(name));
    if (file.empty()) return;
    const std::string target = name + "/" + file;
    if (change)
      write(target, change(read(target)));
    else
      std::filesystem::remove(path(target));
  }

  void make_folders() const {
    const auto replace = [](const std::string& from, const std::string& to) {
      return [=](const std::string& text) { return edited(text, from, to); };
    };
    const auto cut = [](size_t bytes) { return [=](const std::string& text) { return text.substr(0, bytes); }; };
    const auto become = [](const std::string& text) { return [=](const std::string&) { return text; }; };
    const std::string st = "safetensors-fp32", bin = "bin-fp32", json = "safetensors-fp32-tokenizer-json";
    make_folder("hf", st, "", nullptr);
    make_folder("hf-no-config", st, "config.json", nullptr);
    make_folder("hf-no-weights", st, "model.safetensors", nullptr);
    make_folder("hf-no-merges", st, "merges.txt", nullptr);
    make_folder("hf-broken-config", st, "config.json", cut(100));
    make_folder("hf-bert", st, "config.json", replace("\"opt\"", "\"bert\""));
    make_folder("hf-heads", st, "config.json", replace("\"num_attention_heads\": 2", "\"num_attention_heads\": 3"));
    make_folder("hf-odd-head", st, "config.json", replace("\"num_attention_heads\": 2", "\"num_attention_heads\": 8"));
    make_folder("hf-layers", st, "config.json", replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": \"two\""));
    make_folder("hf-huge", st, "config.json", replace("\"ffn_dim\": 12", "\"ffn_dim\": 4611686018427387904"));
    make_folder("hf-wide", st, "config.json", replace("\"ffn_dim\": 12", "\"ffn_dim\": 16"));
    make_folder("hf-vocabulary", st, "config.json", replace("\"vocab_size\": 272", "\"vocab_size\": 100"));
    make_folder("hf-untied", st, "config.json",
                replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"));
    make_folder("hf-vocab-json", st, "vocab.json", cut(1000));
    make_folder("hf-gpt2", st, "vocab.json", replace("\"</s>\": 2", "\"</S>\": 2"));
    make_folder("hf-merges", st, "merges.txt", replace("\n", "\nnosuch pair\n"));
    make_folder("hf-tokenizer-json", json, "tokenizer.json", cut(500));
    make_folder("hf-unigram", json, "tokenizer.json", replace("\"BPE\"", "\"Unigram\""));
    make_folder("hf-cut", st, "model.safetensors", cut(9000));
    make_folder("hf-lfs", st, "model.safetensors", become("version https://git-lfs.github.com/spec/v1\n"));
    make_folder("hf-header", st, "model.safetensors", become(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)));
    make_folder("hf-dtype", st, "model.safetensors", replace("\"F32\"", "\"I32\""));
    make_folder("hf-bin-cut", bin, "pytorch_model.bin", cut(20000));
    make_folder("hf-bin-text", bin, "pytorch_model.bin", become("weights"));
    make_folder("hf-bin-code", bin, "pytorch_model.bin", replace("_rebuild_tensor_v2", "_rebuild_tensor_v3"));
    make_folder("hf-index", "safetensors-fp32-sharded", "model.safetensors.index.json",
                replace("\"model-00003-of-00003.safetensors\"", "\"../hf/model.safetensors\""));
    make_folder("hf-shard", "safetensors-fp32-sharded", "model-00002-of-00003.safetensors", nullptr);
    write("heads.json", edited(read("config.json"), "\"num_attention_heads\": 2", "\"num_attention_heads\": 3"));
    write("small.json", edited(read("config.json"), "\"vocab_size\": 272", "\"vocab_size\": 267"));
    write("broken.json", "{\"vocab_size\": ");
    std::filesystem::create_directory(path("empty-folder"));
  }

  void make_data() const {
    write("pairs.jsonl", R"({"prompt": "a", "chosen": "tea", "rejected": "no"})"
                         "\n"
                         R"({"prompt": "b", "chosen": "rice", "rejected": "x"})"
                         "\n");
    write("broken.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\", \"respon\n");
    write("fields.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n");
    write("types.jsonl", "{\"prompt\": \"a\", \"response\": 7}\n");
    write("unicode.jsonl", "{\"text\": \"\xff\"}\n");
    write("texts.jsonl", "{\"text\": \"a\"}\n");
    write("roles.jsonl", R"({"messages": [{"role": "robot", "content": "a"}]})"
                         "\n");
    write("ids.jsonl", "{\"ids\": [2, 5]}\n{\"ids\": [2, 272]}\n");
    write("negative.jsonl", "{\"ids\": [2, -1]}\n");
    write("empty.jsonl", "");
    write("long.jsonl", "{\"prompt\": \"a\", \"response\": \"" + std::string(300, 'z') + "\"}\n");
    write("plain.jsonl.gz", "{\"text\": \"a\"}\n");
    // gzip of {"text": "a"}, then cut.
    const std::string gzip("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x50\x4a", 21);
    write("cut.jsonl.gz", gzip);
    write("damaged.jsonl.gz", gzip.substr(0, 10) + std::string(40, '\xff'));
    write("zipped.jsonl", gzip);
  }

  void make_configurations() const {
    write("syntax.toml", "steps = 1\nlr = = 2\n");
    write("unknown.toml", "steps = 1\nlearning = 2\n");
    write("type.toml", "lr = \"fast\"\n");
    write("table.toml", "[sft]\nlr = 1e-3\n");
    write("twice.toml", "lr = 1\nlr = 2\n");
    write("pipeline.toml", "[model]\nsft = \"lm.h5\"\n[sft]\nrollouts = 2\n");
    const ProgramResult run = run_program({"sft", "--model", "lm.h5", "--data", "pairs.jsonl", "--steps", "2",
                                           "--max-length", "32", "--device", "cpu", "--out", "run"},
                                          "", "cd " + path() + ";");
    REQUIRE_MESSAGE(run.exit_code == 0, run.err);
    std::filesystem::copy(path("run"), path("bad-record"), std::filesystem::copy_options::recursive);
    write("bad-record/config.toml", "lr = \n");
    for (const char* copy : {"lost-log", "damaged-run"})
      std::filesystem::copy(path("run"), path(copy), std::filesystem::copy_options::recursive);
    write("lost-log/metrics.jsonl", "");
    for (const auto& checkpoint : std::filesystem::directory_iterator(path("damaged-run/checkpoints")))
      std::filesystem::resize_file(checkpoint.path(), 100);
    std::filesystem::create_directory(path("mine"));
    write("mine/thesis.tex", "text\n");
  }

  TemporaryFolder folder_;
};

}  // namespace tercet
