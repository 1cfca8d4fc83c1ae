#include "store/torch_zip.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/thread_pool.h"
#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

std::string refused(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = write_bytes(folder / "m.bin", bytes);
  return refusal([&] { TorchZipReader reader(path); });
}

std::string refused_golden(const std::string& name) {
  return refusal([&] { TorchZipReader reader(golden_folder() + name); });
}

std::string floats(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += bytes_of(static_cast<float>(i));
  return bytes;
}

// A file of one fp32 tensor "w" over a storage of `count` elements 0, 1, 2, ...
std::string one_tensor(size_t count, pickle::TensorOptions options) {
  options.storage = static_cast<int32_t>(count);
  return torch_file(pickle::state_dict("w", pickle::tensor(options)), {floats(count)});
}

}  // namespace

TEST_CASE(
    "files of torch.save read as PyTorch holds them: every dtype, strides, offsets, shared storages, parameters") {
  for (const char* name : {"dtypes.bin", "strided.bin", "module.bin"}) {
    CAPTURE(name);
    check_golden(TorchZipReader(golden_folder() + name), name);
  }
}

TEST_CASE("a file that was not made by torch.save but in its format is read") {
  const std::string path = shared_file("fake-tiny-opt.bin");
  if (path.empty()) return;
  const TorchZipReader reader(path);
  CHECK(reader.tensors().size() == 21);
  CHECK(reader.at("model.decoder.layers.0.fc1.weight").describe() == "model.decoder.layers.0.fc1.weight fp16[32, 8]");
  const auto embedding = reader.read_vector<float>("model.decoder.embed_tokens.weight");
  CHECK(std::vector<float>(embedding.begin(), embedding.begin() + 5) ==
        std::vector<float>{0.0257568359375F, 0.02899169921875F, 0.0013265609741210938F, -0.015289306640625F,
                           -0.0218505859375F});
  CHECK(reader.read_vector<float>("lm_head.weight") == embedding);
}

TEST_CASE("a file of PyTorch 1.13 with a transposed view, a slice, a shared storage and a parameter is read") {
  const std::string path = shared_file("torch113-sample.bin");
  if (path.empty()) return;
  const TorchZipReader reader(path);
  CHECK(reader.tensors().size() == 9);
  const auto view = reader.read_vector<float>("a.view");
  for (size_t row = 0; row < 6; ++row)
    for (size_t column = 0; column < 4; ++column) CHECK(view[row * 4 + column] == static_cast<float>(column * 6 + row));
  const auto embedding = reader.read_vector<float>("model.decoder.embed_tokens.weight");
  CHECK(reader.read_vector<float>("b.slice") == std::vector<float>(embedding.begin() + 24, embedding.begin() + 40));
  CHECK(reader.read_vector<float>("lm_head.weight") == embedding);
  CHECK(reader.read_vector<float>("bf16") == std::vector<float>{-0.03125F, 0.498046875F, -0.5234375F});
  CHECK(reader.read_vector<float>("param") == std::vector<float>{-0.25147950649261475F, -1.0555318593978882F});
  CHECK(reader.read_vector<int64_t>("i64") == std::vector<int64_t>{5});
}

TEST_CASE("any part of a strided view reads as the same part of the whole, converted") {
  const TempFolder folder;
  const std::string path = write_bytes(
      folder / "m.bin", one_tensor(100'000, {.offset = 3, .shape = {50, 20, 40}, .strides = {20, 1, 1000}}));
  const TorchZipReader reader(path);
  std::vector<double> expected;
  for (int i = 0; i < 50; ++i)
    for (int j = 0; j < 20; ++j)
      for (int k = 0; k < 40; ++k) expected.push_back(3 + i * 20 + j + k * 1000);
  for (const int threads : {1, 3}) {
    set_threads(threads);
    CHECK(reader.read_vector<double>("w") == expected);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {39, 2}, {1234, 5678}, {39'999, 1}, {800, 33'000}}) {
      std::vector<double> part(static_cast<size_t>(count));
      reader.read("w", DType::f64, first, count, part.data());
      CHECK(part == std::vector<double>(expected.begin() + first, expected.begin() + first + count));
    }
  }
  set_threads(available_cores());
}

TEST_CASE("a view must stay inside its storage") {
  CHECK(refused(one_tensor(6, {.shape = {2, 3}, .strides = {3, 1}})).empty());
  CHECK(refused(one_tensor(6, {.offset = 6, .shape = {0, 3}, .strides = {3, 1}})).empty());
  CHECK(refused(one_tensor(0, {.shape = {0}, .strides = {1}})).empty());
  CHECK_REFUSED(refused(one_tensor(0, {})), "reaches beyond its storage");
  CHECK_REFUSED(refused(one_tensor(6, {.shape = {7}, .strides = {1}})), "the tensor w reaches beyond its storage");
  CHECK_REFUSED(refused(one_tensor(6, {.offset = 1, .shape = {2, 3}, .strides = {3, 1}})),
                "reaches beyond its storage");
  CHECK_REFUSED(refused(one_tensor(6, {.shape = {2, 3}, .strides = {4, 1}})), "reaches beyond its storage");
  CHECK_REFUSED(refused(one_tensor(6, {.offset = 6})), "reaches beyond its storage");
  CHECK_REFUSED(refused(one_tensor(6, {.shape = {2, 3, 1 << 30, 1 << 30}, .strides = {0, 0, 1 << 30, 1 << 30}})),
                "impossible shape");
  CHECK_REFUSED(refused(one_tensor(6, {.shape = {1 << 30, 1 << 30}, .strides = {0, 0}})), "repeats elements");
  CHECK_REFUSED(refused_golden("expanded.bin"), "repeats elements of its storage");
}

TEST_CASE("strides along which a tensor has one element or none are never taken, whatever the file says") {
  const std::string huge = "\x8a\x08" + bytes_of(std::numeric_limits<int64_t>::max());
  const auto file = [&](const pickle::TensorOptions& options) {
    std::string program = pickle::state_dict("w", pickle::tensor(options));
    const std::string placeholder = pickle::integer(777);
    for (size_t at = program.find(placeholder); at != std::string::npos; at = program.find(placeholder))
      program.replace(at, placeholder.size(), huge);
    return torch_file(program, {floats(6)});
  };
  const TempFolder folder;
  const TorchZipReader reader(
      write_bytes(folder / "m.bin", file({.storage = 6, .offset = 1, .shape = {2, 1, 2}, .strides = {1, 777, 2}})));
  CHECK(reader.read_vector<float>("w") == std::vector<float>{1, 3, 2, 4});
  CHECK(
      refused(file({.storage = 6, .shape = {0, 1 << 30, 1 << 30, 1 << 30}, .strides = {777, 777, 777, 777}})).empty());
  CHECK_REFUSED(refused(file({.storage = 6, .shape = {2}, .strides = {777}})), "reaches beyond its storage");
  CHECK_REFUSED(refused(file({.storage = 6, .offset = 777, .shape = {1}, .strides = {1}})), "beyond its storage");
}

TEST_CASE("a storage must have the size and the dtype that the pickle says") {
  const std::string program = pickle::state_dict("w", pickle::tensor({.storage = 2, .shape = {2}, .strides = {1}}));
  CHECK(refused(torch_file(program, {floats(2)})).empty());
  CHECK_REFUSED(refused(torch_file(program, {floats(3)})), "a storage of 2 fp32 elements, but its data has 12 bytes");
  CHECK_REFUSED(refused(torch_file(program, {floats(1)})), "its data has 4 bytes");
  CHECK_REFUSED(refused(torch_file(program, {})), "has no data in the archive");
  for (const char* type : {"ShortStorage", "CharStorage"})
    CHECK_REFUSED(
        refused(torch_file(
            pickle::state_dict("w", pickle::tensor({.type = type, .storage = 2, .shape = {2}, .strides = {1}})),
            {floats(2)})),
        type);
  CHECK_REFUSED(refused_golden("int16.bin"), "the tensor w is a torch.ShortStorage");
  CHECK_REFUSED(refused_golden("uint16.bin"), "\"torch._utils _rebuild_tensor_v3\"");
}

TEST_CASE("a name may appear once, and storage keys are names of entries and never paths") {
  const std::string tensor = pickle::tensor({.storage = 2, .shape = {2}, .strides = {1}});
  CHECK_REFUSED(
      refused(torch_file(pickle::program("}(" + pickle::text("w") + tensor + pickle::text("w") + tensor + "u"),
                         {floats(2)})),
      "\"w\" appears twice");
  CHECK_REFUSED(
      refused(torch_file(
          pickle::state_dict(
              "w", pickle::tensor({.key = "../../../etc/passwd", .storage = 2, .shape = {2}, .strides = {1}})),
          {floats(2)})),
      "no data in the archive");
}

TEST_CASE("other kinds of PyTorch files are refused with what they are") {
  CHECK_REFUSED(refused_golden("legacy.bin"), "before PyTorch 1.6");
  CHECK_REFUSED(refused_golden("protocol4.bin"), "not of protocol 2");
  CHECK_REFUSED(refused_golden("whole_module.bin"), "which a state dict does not need");
  CHECK_REFUSED(refused_golden("nested.bin"), "the entry \"model\" of the state dict is a dict");
  CHECK_REFUSED(refused_golden("dtypes.safetensors"), "not a PyTorch file");
  CHECK_REFUSED(refused("\x80\x02}."), "a bare pickle");
  CHECK_REFUSED(refused(""), "not a PyTorch file");
  CHECK_REFUSED(refused("version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer");
  const std::string empty = pickle::program("}");
  CHECK_REFUSED(refused(make_zip({{.name = "a/other", .data = empty}})), "no data.pkl");
  CHECK_REFUSED(refused(make_zip({{.name = "data.pkl", .data = empty}})), "no data.pkl");
  CHECK_REFUSED(refused(make_zip({{.name = "a/data.pkl", .data = empty}, {.name = "b/data.pkl", .data = empty}})),
                "more than one data.pkl");
  CHECK_REFUSED(refused(torch_file(empty, {}, {{.name = "archive/constants.pkl", .data = "x"}})), "TorchScript");
  CHECK_REFUSED(refused(torch_file(empty, {}, {{.name = "archive/byteorder", .data = "big"}})), "not little-endian");
  CHECK(refused(torch_file(empty, {}, {{.name = "archive/byteorder", .data = "little"}})).empty());
  CHECK(refused(torch_file(empty, {}, {{.name = "archive/version", .data = "3\n"}})).empty());
}

TEST_CASE("a file of torch.save cut anywhere is refused") {
  const std::string whole = read_file(golden_folder() + "module.bin");
  for (size_t kept = 0; kept < whole.size(); kept += kept < 64 ? 1 : 29) {
    CAPTURE(kept);
    CHECK_FALSE(refused(whole.substr(0, kept)).empty());
  }
}

TEST_CASE("ZIP64 records of a PyTorch file are read") {
  const std::string program = pickle::state_dict("w", pickle::tensor({.storage = 3, .shape = {3}, .strides = {1}}));
  const TempFolder folder;
  const std::vector<ZipEntry> entries = {{.name = "m/data.pkl", .data = program, .sizes_follow = true},
                                         {.name = "m/data/0", .data = floats(3), .zip64 = true}};
  const TorchZipReader reader(write_bytes(folder / "m.bin", make_zip(entries, {.zip64_end = true})));
  CHECK(reader.read_vector<float>("w") == std::vector<float>{0, 1, 2});
}
