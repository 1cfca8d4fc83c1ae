#include "store/shard_index.h"

#include "base/log.h"
#include "store/safetensors.h"
#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// Everything that is logged during the object's life.
class CapturedLog {
 public:
  explicit CapturedLog(const TempFolder& folder) : path_(folder / "log.txt") {
    log::set_terminal(false);
    log::open_file(path_);
  }
  ~CapturedLog() {
    log::close_file();
    log::set_terminal(true);
  }
  std::string text() const { return read_file(path_); }

 private:
  std::string path_;
};

void write_shard(const std::string& path, const std::vector<std::string>& names, float value) {
  std::vector<TensorInfo> infos;
  for (const std::string& name : names) infos.push_back({name, DType::f32, {1}});
  SafetensorsWriter writer(path, infos);
  for (const std::string& name : names) writer.write(name, DType::f32, &value);
  writer.finish();
}

void write_index(const TempFolder& folder, const std::string& map) {
  write_bytes(folder / "model.safetensors.index.json", "{\"metadata\":{\"total_size\":8},\"weight_map\":" + map + "}");
}

std::string refused(const TempFolder& folder) {
  return refusal([&] { open_weights(folder.path()); });
}

}  // namespace

TEST_CASE("sets of shards written by huggingface_hub read as one source, in the index's order") {
  for (const char* name : {"sharded_safetensors", "sharded_bin"}) {
    CAPTURE(name);
    const auto source = open_weights(golden_folder() + name);
    check_golden(*source, name);
    CHECK(source->tensors().front().name == "layers.0.weight");
    CHECK(source->tensors().back().name == "embed.weight");
  }
}

TEST_CASE("safetensors are preferred, a single file before a set, and the choice is said") {
  const TempFolder folder;
  const CapturedLog captured(folder);
  std::filesystem::copy_file(golden_folder() + "module.bin", folder / "pytorch_model.bin");
  CHECK(open_weights(folder.path())->path() == folder / "pytorch_model.bin");
  CHECK(captured.text().empty());
  write_shard(folder / "model-1.safetensors", {"a"}, 1);
  write_index(folder, "{\"a\":\"model-1.safetensors\"}");
  CHECK(open_weights(folder.path())->path() == folder / "model.safetensors.index.json");
  CHECK(contains(captured.text(), "reading model.safetensors.index.json; pytorch_model.bin is not read"));
  write_shard(folder / "model.safetensors", {"a"}, 2);
  CHECK(open_weights(folder.path())->path() == folder / "model.safetensors");
}

TEST_CASE("a folder without weights is refused with the names that are looked for") {
  const TempFolder folder;
  CHECK_REFUSED(refused(folder),
                "model.safetensors, model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json");
  CHECK_REFUSED(refusal([&] { open_weights(folder / "absent"); }), "no weights in the folder");
}

TEST_CASE("tensors outside the index are left out with a warning") {
  const TempFolder folder;
  const CapturedLog captured(folder);
  write_shard(folder / "one", {"a", "b", "c"}, 1);
  write_shard(folder / "two", {"b", "d"}, 2);
  write_index(folder, "{\"d\":\"two\",\"a\":\"one\",\"b\":\"two\"}");
  const auto source = open_weights(folder.path());
  CHECK(source->tensors().size() == 3);
  CHECK(source->read_vector<float>("b") == std::vector<float>{2});
  CHECK(contains(captured.text(), "2 tensors of one are not in the index and are not read, b first"));
  CHECK_FALSE(contains(captured.text(), "of two"));
}

TEST_CASE("shards that are no plain file names, do not exist or lack a mapped tensor are refused") {
  const TempFolder folder;
  write_shard(folder / "one", {"a"}, 1);
  for (const char* name : {"../one", "/etc/passwd", "sub/one", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    CAPTURE(name);
    write_index(folder, std::string("{\"a\":\"") + name + "\"}");
    CHECK_REFUSED(refused(folder), "not a plain file name");
  }
  write_index(folder, "{\"a\":\"two\"}");
  CHECK_REFUSED(refused(folder), "the shard two is missing");
  write_index(folder, "{\"a\":\"one\",\"b\":\"one\"}");
  CHECK_REFUSED(refused(folder), "the tensor \"b\" is not in one");
  std::filesystem::create_directory(folder / "folder");
  write_index(folder, "{\"a\":\"folder\"}");
  CHECK_REFUSED(refused(folder), "not a regular file");
}

TEST_CASE("an index of another form is refused") {
  const TempFolder folder;
  write_shard(folder / "one", {"a"}, 1);
  write_bytes(folder / "model.safetensors.index.json", "{");
  CHECK_REFUSED(refused(folder), "not valid JSON");
  write_bytes(folder / "model.safetensors.index.json", "{}");
  CHECK_REFUSED(refused(folder), "no object \"weight_map\"");
  write_bytes(folder / "model.safetensors.index.json", "[]");
  CHECK_REFUSED(refused(folder), "no object \"weight_map\"");
  write_index(folder, "[\"a\"]");
  CHECK_REFUSED(refused(folder), "no object \"weight_map\"");
  write_index(folder, "{\"a\":1}");
  CHECK_REFUSED(refused(folder), "maps \"a\" to an integer");
  write_index(folder, "{\"a\":\"one\",\"a\":\"one\"}");
  CHECK_REFUSED(refused(folder), "appears twice");
}

TEST_CASE("a broken shard is refused with its own path") {
  const TempFolder folder;
  write_bytes(folder / "one", "broken");
  write_index(folder, "{\"a\":\"one\"}");
  CHECK_REFUSED(refused(folder), folder / "one");
}
