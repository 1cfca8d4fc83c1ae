#include "store/hdf5_file.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "base/thread_pool.h"
#include "store/user_block.h"
#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

// The library keeps a few hundred bytes of a file that it could not close on a full disk; the leak sanitizer asks here.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace {

constexpr std::array kDTypes = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8};

// Bytes in which every value of every byte appears: as floats, NaNs of many payloads, infinities and denormals.
std::string pattern_bytes(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 12345;
  for (char& c : bytes) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return bytes;
}

// A small file with a tensor "w" of `elements` fp32 values 0, 1, 2, ... and the text "config".
std::string write_small(const std::string& path, int64_t elements = 1000) {
  std::vector<float> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Hdf5Writer writer(path, values.size() * sizeof(float));
  writer.set_text("config", "{\"hidden_size\":8}");
  writer.write({"w", DType::f32, {elements}}, values.data());
  writer.finish();
  return path;
}

std::string refused(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = write_bytes(folder / "m.h5", bytes);
  return refusal([&] { Hdf5Reader reader(path); });
}

// The block of `file` written anew over its changed fields, with a right checksum of its own.
std::string resealed(std::string file) {
  const auto block = std::bit_cast<uint64_t>(*reinterpret_cast<const std::array<char, 8>*>(file.data() + 16));
  std::memset(file.data() + 40, 0, 8);
  const uint64_t checksum = hash64(std::string_view(file).substr(0, block));
  std::memcpy(file.data() + 40, &checksum, 8);
  return file;
}

}  // namespace

TEST_CASE("tensors of every dtype keep every bit: NaN payloads, infinities, denormals, scalars, empty shapes") {
  const TempFolder folder;
  const std::string path = folder / "m.h5";
  std::vector<TensorInfo> infos;
  for (const DType dtype : kDTypes) {
    const std::string name = std::string("layers.0.") + dtype_name(dtype);
    infos.push_back({name + ".weight", dtype, {64, 1024}});
    infos.push_back({name + ".scalar", dtype, {}});
    infos.push_back({name + ".empty", dtype, {3, 0, 2}});
    infos.push_back({name + ".deep", dtype, {1, 2, 1, 3, 1, 2, 1, 2}});
  }
  const std::string bytes = pattern_bytes(64 * 1024 * 8);
  {
    Hdf5Writer writer(path, 4 << 20);
    for (const TensorInfo& info : infos) writer.write(info, bytes.data());
    writer.finish();
  }
  const Hdf5Reader reader(path);
  CHECK(reader.tensors() == infos);
  CHECK(reader.verified());
  for (const TensorInfo& info : infos)
    CHECK(raw_bytes(reader, info) == bytes.substr(0, static_cast<size_t>(info.bytes())));
}

TEST_CASE("all 65,536 bf16 and fp16 patterns pass through a file, and read and write as floats") {
  const TempFolder folder;
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<float> values(patterns.size());
    convert(dtype, patterns.data(), DType::f32, values.data(), 1 << 16);
    {
      Hdf5Writer writer(folder / "m.h5", 1 << 20);
      writer.write({"raw", dtype, {256, 256}}, patterns.data());
      writer.write({"converted", dtype, {256, 256}}, DType::f32, values.data());
      writer.finish();
    }
    const Hdf5Reader reader(folder / "m.h5");
    std::vector<uint16_t> raw(patterns.size());
    reader.read("raw", dtype, raw.data());
    CHECK(raw == patterns);
    reader.read("converted", dtype, raw.data());
    const auto floats = reader.read_vector<float>("raw");
    size_t wrong = 0;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const bool nan = std::isnan(values[i]);
      wrong += nan ? !std::isnan(floats[i]) : floats[i] != values[i];
      wrong += !nan && raw[i] != patterns[i];
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("tensors in groups, parts in any order and conversions in both directions are kept") {
  const TempFolder folder;
  std::vector<float> values(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.1F;
  {
    Hdf5Writer writer(folder / "m.h5", 4096);
    writer.create({"adam_m/model.decoder.fc1.weight", DType::f64, {10, 10}});
    writer.write({"model.decoder.fc1.weight", DType::bf16, {10, 10}}, DType::f32, values.data());
    writer.write_part("adam_m/model.decoder.fc1.weight", 30, 70, DType::f32, values.data() + 30);
    writer.create({"adam_v/a/b", DType::f32, {1}});
    writer.write_part("adam_v/a/b", 0, 1, DType::f32, values.data() + 7);
    writer.write_part("adam_m/model.decoder.fc1.weight", 0, 30, DType::f32, values.data());
    writer.finish();
  }
  const Hdf5Reader reader(folder / "m.h5");
  CHECK(reader.tensors().size() == 3);
  CHECK(reader.read_vector<float>("adam_m/model.decoder.fc1.weight") == values);
  CHECK(reader.read_vector<float>("adam_v/a/b")[0] == values[7]);
  const auto rounded = reader.read_vector<float>("model.decoder.fc1.weight");
  for (size_t i = 0; i < values.size(); ++i) CHECK(rounded[i] == to_float(to_bfloat16(values[i])));
  float part[3];
  reader.read("adam_m/model.decoder.fc1.weight", DType::f32, 29, 3, part);
  CHECK(part[2] == values[31]);
}

TEST_CASE("texts of any length and any UTF-8 are kept, and read without touching weights") {
  const TempFolder folder;
  const std::string large = "\xE2\x82\xAC" + std::string(3'000'000, 'v') + "\n";
  {
    Hdf5Writer writer(folder / "m.h5", 3'000'100);
    writer.set_text("tokenizer.vocab", large);
    writer.set_text("config", "{}");
    writer.set_text("empty", "");
    writer.finish();
  }
  const Hdf5Reader reader(folder / "m.h5", Hdf5Verify::structure);
  CHECK(reader.text_keys() == std::vector<std::string>{"tokenizer.vocab", "config", "empty"});
  CHECK(reader.text("tokenizer.vocab") == large);
  CHECK(reader.text("config") == "{}");
  CHECK(reader.has_text("empty"));
  CHECK(reader.text("empty").empty());
  CHECK_FALSE(reader.has_text("template"));
  CHECK_REFUSED(refusal([&] { reader.text("template"); }), "no text named \"template\"");
}

TEST_CASE("the same contents make the same bytes") {
  const TempFolder folder;
  write_small(folder / "a.h5");
  write_small(folder / "b.h5");
  CHECK(read_file(folder / "a.h5") == read_file(folder / "b.h5"));
  CHECK(Hdf5Reader(folder / "a.h5").checksum() == Hdf5Reader(folder / "b.h5").checksum());
  write_small(folder / "c.h5", 1001);
  CHECK(Hdf5Reader(folder / "a.h5").checksum() != Hdf5Reader(folder / "c.h5").checksum());
}

TEST_CASE("a thousand tensors with long names keep their order") {
  const TempFolder folder;
  std::vector<TensorInfo> infos;
  for (int i = 0; i < 1000; ++i)
    infos.push_back(
        {"model.decoder.layers." + std::to_string(i * 7 % 1000) + ".self_attn_layer_norm.weight", DType::f16, {3}});
  const uint16_t values[3] = {1, 2, 3};
  {
    Hdf5Writer writer(folder / "m.h5", 6000);
    for (const TensorInfo& info : infos) writer.write(info, values);
    writer.finish();
  }
  CHECK(Hdf5Reader(folder / "m.h5").tensors() == infos);
}

TEST_CASE("other files are refused, each with its own message") {
  CHECK_REFUSED(refused(""), "the file is empty");
  CHECK_REFUSED(refused("hello"), "not an HDF5 file");
  CHECK_REFUSED(refused(std::string(5000, '\0')), "not an HDF5 file");
  CHECK_REFUSED(refused(read_file(golden_folder() + "dtypes.safetensors")), "not an HDF5 file");
  CHECK_REFUSED(refused(read_file(golden_folder() + "foreign.h5")), "not one that tercet wrote");
  CHECK_REFUSED(refused("someone" + read_file(golden_folder() + "foreign_user_block.h5").substr(7)),
                "not one that tercet wrote");
  CHECK_REFUSED(refused(read_file(golden_folder() + "foreign_user_block.h5")), "never finished");
  const TempFolder folder;
  CHECK_REFUSED(refusal([&] { Hdf5Reader reader(folder / "absent.h5"); }), "cannot open the file");
  CHECK_REFUSED(refusal([&] { Hdf5Reader reader(folder.path()); }), "not a regular file");
}

TEST_CASE("a truncated, an extended and a newer file are refused, each with its own message") {
  const TempFolder folder;
  const std::string whole = read_file(write_small(folder / "m.h5"));
  CHECK(refused(whole).empty());
  for (const size_t kept : {size_t{8}, size_t{100}, size_t{511}, size_t{512}, size_t{1023}, size_t{1024},
                            whole.size() / 2, whole.size() - 1})
    CHECK_REFUSED(refused(whole.substr(0, kept)), "truncated");
  CHECK_REFUSED(refused(whole + "x"), "1 bytes after its end");
  std::string newer = whole;
  newer[8] = 2;
  CHECK_REFUSED(refused(newer), "format version 2, but this tercet reads up to version 1");
}

TEST_CASE("every altered byte of a file is noticed") {
  const TempFolder folder;
  const std::string path = folder / "m.h5";
  const std::string whole = read_file(write_small(path, 10));
  for (size_t i = 0; i < whole.size(); i += i < 1600 ? 7 : 997) {
    CAPTURE(i);
    std::string altered = whole;
    altered[i] = static_cast<char>(altered[i] ^ 0x10);
    write_bytes(path, altered);
    const std::string message = refusal([&] { Hdf5Reader reader(path); });
    CHECK_FALSE(message.empty());
    if (i >= 1024) CHECK(contains(message, "do not match their checksum"));
  }
}

TEST_CASE("fields of the block that contradict the file are refused even when its checksum is right") {
  const TempFolder folder;
  const std::string whole = read_file(write_small(folder / "m.h5"));
  CHECK(resealed(whole) == whole);
  for (const size_t offset :
       {size_t{8}, size_t{12}, size_t{16}, size_t{17}, size_t{23}, size_t{24}, size_t{31}, size_t{32}, size_t{39}}) {
    CAPTURE(offset);
    std::string altered = whole;
    altered[offset] = static_cast<char>(altered[offset] ^ 0x01);
    CHECK_FALSE(refused(altered).empty());
    if (offset < 16 || offset >= 24) CHECK_FALSE(refused(resealed(altered)).empty());
  }
}

TEST_CASE("opening with structure checks reads no weights, and their first reading checks them") {
  const TempFolder folder;
  const std::string path = write_small(folder / "m.h5", 2'000'000);
  std::string altered = read_file(path);
  const size_t last_weight = altered.rfind(bytes_of(1'999'999.0F));
  REQUIRE(last_weight != std::string::npos);
  const size_t middle = altered.find(bytes_of(1'000'000.0F));
  altered[middle] = static_cast<char>(altered[middle] ^ 1);
  write_bytes(path, altered);
  CHECK_REFUSED(refusal([&] { Hdf5Reader reader(path); }), "do not match their checksum");
  const Hdf5Reader reader(path, Hdf5Verify::structure);
  CHECK(reader.text("config") == "{\"hidden_size\":8}");
  CHECK_FALSE(reader.verified());
  float value = 0;
  reader.read("w", DType::f32, 5, 1, &value);
  CHECK(value == 5);
  reader.read("w", DType::f32, 1'999'999, 1, &value);
  CHECK(value == 1'999'999.0F);
  CHECK_REFUSED(refusal([&] { reader.read("w", DType::f32, 1'000'000, 1, &value); }), "do not match their checksum");
  CHECK_REFUSED(refusal([&] { reader.read_vector<float>("w"); }), "do not match their checksum");
  CHECK_REFUSED(refusal([&] { reader.verify_all(); }), "do not match their checksum");
}

TEST_CASE("a file opened with structure checks becomes verified") {
  const TempFolder folder;
  const Hdf5Reader reader(write_small(folder / "m.h5", 2'000'000), Hdf5Verify::structure);
  CHECK_FALSE(reader.verified());
  CHECK(reader.file_bytes() == std::filesystem::file_size(folder / "m.h5"));
  reader.verify_all();
  CHECK(reader.verified());
}

TEST_CASE("several threads read one file") {
  const TempFolder folder;
  const Hdf5Reader reader(write_small(folder / "m.h5", 2'000'000), Hdf5Verify::structure);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      std::vector<double> values(2'000'000);
      reader.read("w", DType::f64, values.data());
      for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != static_cast<double>(i);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("misuse of the writer is a defect that is named") {
  const TempFolder folder;
  const std::vector<float> values(8);
  Hdf5Writer writer(folder / "m.h5", 100);
  const auto misused = [&](const std::function<void()>& action) { return refusal(action, Fault::run); };
  writer.write({"a", DType::f32, {8}}, values.data());
  CHECK_REFUSED(misused([&] { writer.create({"a", DType::f32, {8}}); }), "used twice");
  CHECK_REFUSED(misused([&] { writer.create({"a/b", DType::f32, {8}}); }), "both a tensor and a group");
  writer.write({"g/b", DType::f32, {8}}, values.data());
  CHECK_REFUSED(misused([&] { writer.create({"g", DType::f32, {8}}); }), "used twice");
  for (const char* name : {"/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a/b/c/d/e/f/g/h/i"})
    CHECK_REFUSED(misused([&] { writer.create({name, DType::f32, {8}}); }), "cannot be a path");
  CHECK_REFUSED(misused([&] { writer.write_part("x", 0, 1, DType::f32, values.data()); }), "not declared");
  CHECK_REFUSED(misused([&] { writer.write_part("a", 0, 1, DType::f32, values.data()); }), "written twice");
  CHECK_REFUSED(misused([&] { writer.write({"i", DType::i64, {8}}, DType::f32, values.data()); }), "cannot be written");
  CHECK_REFUSED(misused([&] { writer.create({"huge", DType::f64, {int64_t{1} << 30}}); }), "more than the file");
  for (const char* key : {"", "a/b", "a b", ".", "..", "\xC3\xA9"})
    CHECK_REFUSED(misused([&] { writer.set_text(key, ""); }), "not a key");
  CHECK_REFUSED(misused([&] { writer.set_text("nul", std::string_view("a\0b", 3)); }), "null byte");
  writer.set_text("t", "1");
  CHECK_REFUSED(misused([&] { writer.set_text("t", "2"); }), "set twice");
  CHECK_REFUSED(misused([&] { writer.finish(); }), "never written");
  CHECK_FALSE(std::filesystem::exists(folder / "m.h5"));
}

TEST_CASE("an unfinished file never appears and leaves nothing behind") {
  const TempFolder folder;
  const std::string path = write_small(folder / "m.h5");
  const std::string before = read_file(path);
  {
    const std::vector<float> values(1000, 1.0F);
    Hdf5Writer writer(path, 4000);
    writer.write({"w", DType::f32, {1000}}, values.data());
    CHECK(folder.files() == 2);
  }
  CHECK(folder.files() == 1);
  CHECK(read_file(path) == before);
  CHECK_REFUSED(refusal([&] { Hdf5Writer writer(folder / "none/m.h5", 10); }), "there is no folder");
}

TEST_CASE("a process that dies while it writes leaves the last good file") {
  const TempFolder folder;
  const std::string path = write_small(folder / "m.h5");
  const std::string before = read_file(path);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<float> values(1000, 1.0F);
    Hdf5Writer writer(path, 4000);
    writer.write({"w", DType::f32, {1000}}, values.data());
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(read_file(path) == before);
  CHECK(Hdf5Reader(path).verified());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path() != path) CHECK_FALSE(refusal([&] { Hdf5Reader reader(entry.path().string()); }).empty());
}

TEST_CASE("a limit on the size of files ends the writing with an error and leaves the last good file") {
  const TempFolder folder;
  const std::string path = write_small(folder / "m.h5");
  const std::string before = read_file(path);
  const std::vector<float> values(1 << 20);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  auto* old_handler = ::signal(SIGXFSZ, SIG_IGN);
  // In the data, in the structure that HDF5 writes at the end, and in the superblock at once.
  for (const rlim_t limit : {rlim_t{1 << 20}, rlim_t{(4 << 20) + 6000}, rlim_t{100}}) {
    rlimit limited = old;
    limited.rlim_cur = limit;
    ::setrlimit(RLIMIT_FSIZE, &limited);
    const std::string message = refusal(
        [&] {
          Hdf5Writer writer(path, 4 << 20);
          writer.write({"w", DType::f32, {1 << 20}}, values.data());
          for (int i = 0; i < 300; ++i) writer.write({"b" + std::to_string(i), DType::f32, {1}}, values.data());
          writer.finish();
        },
        Fault::run);
    ::setrlimit(RLIMIT_FSIZE, &old);
    CHECK_REFUSED(message, "File too large");
    CHECK(folder.files() == 1);
    CHECK(read_file(path) == before);
  }
  ::signal(SIGXFSZ, old_handler);
  CHECK(Hdf5Reader(write_small(folder / "after.h5")).verified());
}

TEST_CASE("a full disk is reported before the first tensor is written and leaves the last good file") {
  const TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    MESSAGE("skipped: this process may not mount a small file system");
    return;
  }
  {
    const std::string path = write_small(folder / "m.h5");
    const std::string before = read_file(path);
    CHECK_REFUSED(refusal([&] { Hdf5Writer writer(path, 8 << 20); }, Fault::run), "No space left on device");
    const std::vector<float> values(1 << 20);
    const std::string message = refusal(
        [&] {
          Hdf5Writer writer(path, 0);
          writer.write({"w", DType::f32, {1 << 20}}, values.data());
        },
        Fault::run);
    CHECK_REFUSED(message, "No space left on device");
    CHECK(folder.files() == 1);
    CHECK(read_file(path) == before);
    CHECK(Hdf5Reader(path).verified());
  }
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

TEST_CASE("the space that was reserved beyond a file's end is given back") {
  const TempFolder folder;
  {
    const std::vector<float> values(100);
    Hdf5Writer writer(folder / "m.h5", 64 << 20);
    writer.write({"w", DType::f32, {100}}, values.data());
    writer.finish();
  }
  struct stat status {};
  REQUIRE(::stat((folder / "m.h5").c_str(), &status) == 0);
  CHECK(status.st_blocks * 512 < (1 << 20));
}

namespace {

std::string python_with_h5py() {
  for (const std::string python : {"python3", "/usr/bin/python3"})
    if (std::system((python + " -c 'import h5py, numpy' 2>/dev/null").c_str()) == 0) return python;
  return "";
}

}  // namespace

TEST_CASE("h5py reads tensors and texts") {
  const std::string python = python_with_h5py();
  if (python.empty()) {
    MESSAGE("skipped: no python3 with h5py");
    return;
  }
  const TempFolder folder;
  const std::string path = folder / "m.h5";
  const std::vector<float> values = {1.5F, -2.0F, 0.0F, -0.0F, std::numeric_limits<float>::infinity(), 9.1835e-41F};
  const std::vector<int64_t> ids = {1, -2, int64_t{1} << 40};
  {
    Hdf5Writer writer(path, 1 << 10);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      writer.write({std::string("model.decoder.") + dtype_name(dtype), dtype, {2, 3}}, DType::f32, values.data());
    writer.write({"step/ids", DType::i64, {3}}, ids.data());
    writer.set_text("config", "{\"a\":\"\xC3\xA9\"}");
    writer.finish();
  }
  write_bytes(folder / "check.py", R"(
import sys, h5py, numpy
f = h5py.File(sys.argv[1], 'r')
values = [1.5, -2.0, 0.0, -0.0, float('inf'), 9.1835e-41]
for name in ('fp64', 'fp32', 'bf16', 'fp16'):
    data = f['tensors/model.decoder.' + name]
    got = data[...].astype(numpy.float64).reshape(-1)
    assert data.shape == (2, 3), data
    assert list(got[:5]) == values[:5] and str(got[3]) == '-0.0', (name, got)
    assert abs(got[5] - (0.0 if name == 'fp16' else values[5])) < 1e-43, (name, got)
assert f['tensors/model.decoder.fp16'].dtype == numpy.float16
assert f['tensors/model.decoder.bf16'].id.get_type().get_fields() == (15, 7, 8, 0, 7)
assert f['tensors/model.decoder.bf16'].id.get_type().get_ebias() == 127
assert list(f['tensors/step/ids']) == [1, -2, 1 << 40]
assert f['texts/config'][()].decode() == '{"a":"\u00e9"}', f['texts/config'][()]
)");
  CHECK(std::system((python + " " + (folder / "check.py") + " " + path).c_str()) == 0);
}
