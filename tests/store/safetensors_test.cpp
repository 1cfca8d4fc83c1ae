#include "store/safetensors.h"

#include <cmath>

#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// A file of this header and buffer; the header's length is its real one unless given.
std::string safetensors(const std::string& header, const std::string& buffer = "") {
  return bytes_of(uint64_t{header.size()}) + header + buffer;
}

std::string refused(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = write_bytes(folder / "m.safetensors", bytes);
  return refusal([&] { SafetensorsReader reader(path); });
}

// A header entry.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

}  // namespace

TEST_CASE("a safetensors file of every dtype reads as the reference implementation wrote it") {
  const SafetensorsReader reader(golden_folder() + "dtypes.safetensors");
  check_golden(reader, "dtypes.safetensors");
  CHECK(reader.metadata() == SafetensorsMetadata{{"format", "pt"}});
}

TEST_CASE("tensors come in the order of their bytes, and parts of them can be read") {
  const TempFolder folder;
  const std::string header = "{" + entry("b", "U8", "[2,2]", "[0,4]") + "," + entry("a", "U8", "[1]", "[5,6]") + "," +
                             entry("c", "BOOL", "[]", "[4,5]") + "}";
  const SafetensorsReader reader(write_bytes(folder / "m", safetensors(header, "\1\2\3\4\5\6")));
  CHECK(reader.tensors() ==
        std::vector<TensorInfo>{{"b", DType::u8, {2, 2}}, {"c", DType::u8, {}}, {"a", DType::u8, {1}}});
  uint8_t part[2];
  reader.read("b", DType::u8, 1, 2, part);
  CHECK(part[0] == 2);
  CHECK(part[1] == 3);
  CHECK(reader.read_vector<uint8_t>("c") == std::vector<uint8_t>{5});
}

TEST_CASE("white space around the header, an empty header, scalars and empty tensors are legal") {
  CHECK(refused(safetensors("{}")).empty());
  CHECK(refused(safetensors("  {} \n  ")).empty());
  CHECK(refused(safetensors("{\"__metadata__\":{}}")).empty());
  CHECK(refused(safetensors("{" + entry("s", "F32", "[]", "[0,4]") + "}", "aaaa")).empty());
  CHECK(refused(
            safetensors("{" + entry("e", "F32", "[3,0]", "[0,0]") + "," + entry("s", "U8", "[1]", "[0,1]") + "}", "a"))
            .empty());
}

TEST_CASE("a header that is too small, too large or longer than the file is refused") {
  CHECK_REFUSED(refused(""), "has 0 bytes");
  CHECK_REFUSED(refused("1234567"), "has 7 bytes");
  CHECK_REFUSED(refused(bytes_of(uint64_t{100'000'001}) + "{}"), "more than 100000000");
  CHECK_REFUSED(refused(std::string("<\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 18)),
                "more than 100000000");
  CHECK_REFUSED(refused(bytes_of(uint64_t{99'999'999}) + "{}"), "the file has only 10");
  CHECK_REFUSED(refused(bytes_of(uint64_t{3}) + "{}"), "the file has only 10");
  CHECK_REFUSED(refused("version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer");
}

TEST_CASE("a header that is not UTF-8 or not JSON is refused") {
  CHECK_REFUSED(refused(safetensors("\xff\xff")), "not valid JSON");
  CHECK_REFUSED(refused(safetensors("{" + entry("\xff", "U8", "[1]", "[0,1]") + "}", "a")), "UTF-8");
  CHECK_REFUSED(refused(safetensors("")), "not valid JSON");
  CHECK_REFUSED(refused(safetensors("{")), "not valid JSON");
  CHECK_REFUSED(refused(safetensors("{}x")), "not valid JSON");
  CHECK_REFUSED(refused(safetensors(std::string("{}\0\0", 4))), "not valid JSON");
  CHECK_REFUSED(refused(safetensors("[]")), "the header is an array");
}

TEST_CASE("entries of another form than the format's are refused") {
  const auto header = [](const std::string& text) { return refused(safetensors("{" + text + "}", "a")); };
  CHECK_REFUSED(header("\"w\":1"), "described by an integer");
  CHECK_REFUSED(header("\"w\":{\"dtype\":\"U8\",\"shape\":[1]}"), "does not have exactly");
  CHECK_REFUSED(header("\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}"),
                "does not have exactly");
  CHECK_REFUSED(header("\"w\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}"), "wrong type");
  CHECK_REFUSED(header(entry("w", "U8", "1", "[0,1]")), "wrong type");
  CHECK_REFUSED(header(entry("w", "U8", "[1]", "[0]")), "wrong type");
  CHECK_REFUSED(header(entry("w", "U8", "[1]", "[0,1,2]")), "wrong type");
  CHECK_REFUSED(header(entry("w", "U9", "[1]", "[0,1]")), "unknown dtype \"U9\"");
  CHECK_REFUSED(header(entry("w", "u8", "[1]", "[0,1]")), "unknown dtype \"u8\"");
  CHECK_REFUSED(header(entry("w", "U8", "[-1]", "[0,1]")), "non-negative integer");
  CHECK_REFUSED(header(entry("w", "U8", "[1.0]", "[0,1]")), "non-negative integer");
  CHECK_REFUSED(header(entry("w", "U8", "[\"1\"]", "[0,1]")), "non-negative integer");
  CHECK_REFUSED(header(entry("w", "U8", "[1]", "[0,18446744073709551616]")), "non-negative integer");
  CHECK_REFUSED(header(entry("w", "U8", "[[1]]", "[0,1]")), "deeper than 3");
  CHECK_REFUSED(header("\"__metadata__\":1"), "not an object");
  CHECK_REFUSED(header("\"__metadata__\":{\"a\":1}"), "not a string");
}

TEST_CASE("a key that appears twice is refused") {
  const std::string one = entry("w", "U8", "[1]", "[0,1]");
  const std::string two = entry("w", "U8", "[1]", "[1,2]");
  CHECK_REFUSED(refused(safetensors("{" + one + "," + two + "}", "ab")), "appears twice");
  CHECK_REFUSED(refused(safetensors("{" + entry("w", "U8", "[1],\"shape\":[1]", "[0,1]") + "}", "a")), "appears twice");
}

TEST_CASE("offsets that leave a hole, overlap, run backwards or do not start at 0 are refused") {
  const auto pair = [](const std::string& first, const std::string& second, const std::string& shape = "[1]") {
    return refused(
        safetensors("{" + entry("a", "U8", "[1]", first) + "," + entry("b", "U8", shape, second) + "}", "abcd"));
  };
  CHECK_REFUSED(pair("[1,2]", "[2,3]"), "\"a\" lies at bytes 1 to 2 where byte 0 is next");
  CHECK_REFUSED(pair("[0,1]", "[2,3]"), "where byte 1 is next");
  CHECK_REFUSED(pair("[0,1]", "[0,1]"), "where byte 1 is next");
  CHECK_REFUSED(pair("[0,2]", "[1,3]"), "has 2 bytes but its dtype and shape ask for 1");
  CHECK_REFUSED(pair("[0,1]", "[1,0]"), "lies at bytes 1 to 0");
  CHECK_REFUSED(pair("[0,1]", "[18446744073709551615,1]"), "where byte 1 is next");
}

TEST_CASE("shapes whose size overflows, does not fill bytes or differs from the offsets are refused") {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                      const std::string& buffer) {
    return refused(safetensors("{" + entry("w", dtype, shape, offsets) + "}", buffer));
  };
  CHECK_REFUSED(one("F32", "[2,18446744073709551614]", "[0,16]", std::string(16, 'a')), "overflows");
  CHECK_REFUSED(one("F32", "[2,9223372036854775807]", "[0,16]", std::string(16, 'a')), "overflows");
  CHECK_REFUSED(one("F4", "[3]", "[0,2]", "ab"), "12 bits, which do not fill bytes");
  CHECK_REFUSED(one("F32", "[2]", "[0,4]", "abcd"), "has 4 bytes but its dtype and shape ask for 8");
  CHECK_REFUSED(one("F32", "[0,18446744073709551615]", "[0,0]", ""), "impossible shape");
  CHECK_REFUSED(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", "a"), "9 dimensions");
}

TEST_CASE("bytes after the last tensor and missing bytes are refused") {
  const std::string header = "{" + entry("w", "F32", "[2]", "[0,8]") + "}";
  CHECK(refused(safetensors(header, "abcdefgh")).empty());
  CHECK_REFUSED(refused(safetensors(header, "abcdefghextra_bogus_data")), "16 bytes follow the last tensor");
  CHECK_REFUSED(refused(safetensors("{}", "x")), "1 bytes follow the last tensor");
  for (size_t kept = 0; kept < 8; ++kept)
    CHECK_REFUSED(refused(safetensors(header, std::string(kept, 'a'))), "truncated");
}

TEST_CASE("a safetensors file cut in its header or its tensors is refused") {
  const std::string whole = read_file(golden_folder() + "dtypes.safetensors");
  for (size_t kept = 0; kept < whole.size(); kept += kept < 64 ? 1 : 23) {
    CAPTURE(kept);
    CHECK_FALSE(refused(whole.substr(0, kept)).empty());
  }
}

TEST_CASE("dtypes that tercet does not compute with are refused by name") {
  for (const char* dtype : {"I8", "I16", "U16", "U32", "U64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    const std::string bytes = std::string(dtype).find("64") != std::string::npos   ? "8"
                              : std::string(dtype).find("32") != std::string::npos ? "4"
                              : std::string(dtype).find("16") != std::string::npos ? "2"
                                                                                   : "1";
    CHECK_REFUSED(refused(safetensors("{" + entry("w", dtype, "[1]", "[0," + bytes + "]") + "}",
                                      std::string(static_cast<size_t>(bytes[0] - '0'), 'a'))),
                  dtype);
  }
  CHECK_REFUSED(refusal([] { SafetensorsReader reader(golden_folder() + "float8.safetensors"); }), "F8_E4M3");
}

TEST_CASE("headers with 99,000 and with 200,000 entries on the same bytes are refused at once") {
  for (const int count : {99'000, 200'000}) {
    std::string header = "{";
    for (int i = 0; i < count; ++i)
      header += (i == 0 ? "" : ",") + entry("t" + std::to_string(i), "U8", "[4]", "[0,4]");
    const double start = cpu_seconds();
    const std::string message = refused(safetensors(header + "}", "abcd"));
    const double seconds = cpu_seconds() - start;
    CHECK_REFUSED(message, count > 100'000 ? "more than 100000 tensors" : "overlap");
    // Quadratic work over 99,000 entries takes minutes; the bound leaves room for sanitizers.
    CHECK(seconds < 30);
  }
  CHECK_REFUSED(refused(safetensors("{\"w\":{\"shape\":[" + std::string(9'000'000, ',') + "]}}")),
                "more than 4000000 items");
}

TEST_CASE("what the writer writes is byte for byte the reference implementation's file") {
  const TempFolder folder;
  const SafetensorsReader golden(golden_folder() + "sharded_safetensors/model-00001-of-00003.safetensors");
  SafetensorsWriter writer(folder / "m", golden.tensors(), golden.metadata());
  for (const TensorInfo& info : golden.tensors()) writer.write(info.name, info.dtype, raw_bytes(golden, info).data());
  writer.finish();
  CHECK(read_file(folder / "m") == read_file(golden.path()));

  const SafetensorsReader dtypes(golden_folder() + "dtypes.safetensors");
  SafetensorsWriter all(folder / "all", dtypes.tensors());
  for (const TensorInfo& info : dtypes.tensors()) all.write(info.name, info.dtype, raw_bytes(dtypes, info).data());
  all.finish();
  // The golden file has a BOOL tensor, which tercet keeps as U8: only its place and its dtype's name differ.
  check_golden(SafetensorsReader(folder / "all"), "dtypes.safetensors");
}

TEST_CASE("the writer converts, takes parts in any order, escapes names and pads its header") {
  const TempFolder folder;
  const std::vector<float> values = {1.5F, -2.25F, 1e-8F, 70000.0F};
  {
    SafetensorsWriter writer(folder / "m", {{"half \"quoted\" \xC3\xA9", DType::f16, {4}}, {"a", DType::f64, {2, 2}}},
                             {});
    writer.write_part("a", 2, 2, DType::f32, values.data() + 2);
    writer.write_part("a", 0, 2, DType::f32, values.data());
    writer.write("half \"quoted\" \xC3\xA9", DType::f32, values.data());
    writer.finish();
  }
  const SafetensorsReader reader(folder / "m");
  CHECK(read_file(folder / "m")[0] % 8 == 0);
  CHECK(reader.tensors()[0].name == "a");
  CHECK(reader.read_vector<float>("a") == values);
  const auto half = reader.read_vector<float>("half \"quoted\" \xC3\xA9");
  CHECK(half[1] == -2.25F);
  CHECK(half[2] == 0.0F);
  CHECK(std::isinf(half[3]));
}

TEST_CASE("an unfinished safetensors file never appears, and an incomplete one is a defect") {
  const TempFolder folder;
  const std::vector<float> values(4);
  write_bytes(folder / "m", "the last good file");
  {
    SafetensorsWriter writer(folder / "m", {{"a", DType::f32, {4}}});
    writer.write_part("a", 0, 3, DType::f32, values.data());
    CHECK_REFUSED(refusal([&] { writer.write_part("b", 0, 1, DType::f32, values.data()); }, Fault::run),
                  "not declared");
    CHECK_REFUSED(refusal([&] { writer.write_part("a", 3, 1, DType::i32, values.data()); }, Fault::run),
                  "cannot be written");
    CHECK_REFUSED(refusal([&] { writer.write_part("a", 2, 1, DType::f32, values.data()); }, Fault::run),
                  "written twice");
    CHECK_REFUSED(refusal([&] { writer.finish(); }, Fault::run),
                  "1 elements of the tensor a fp32[4] were never written");
    CHECK(folder.files() == 2);
  }
  CHECK(folder.files() == 1);
  CHECK(read_file(folder / "m") == "the last good file");
  CHECK_REFUSED(refusal([&] { SafetensorsWriter writer(folder / "none/m", {}); }), "there is no folder");
}
