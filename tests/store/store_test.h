// Helpers of the store's tests: a temporary folder, the message of a refusal, builders of safetensors, zip and pickle
// bytes, and the golden values of tests/golden/make_store_goldens.py.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "store/tensor_file.h"
#include "temporary_folder.h"

namespace tercet::test {

class TempFolder : testing::TemporaryFolder {
 public:
  using TemporaryFolder::operator/;
  const std::string& path() const { return TemporaryFolder::path; }

  size_t files() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path())) ++count;
    return count;
  }
};

inline std::string write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

// The message of the Error that `action` throws, which must be of that fault; empty when nothing is thrown.
inline std::string refusal(const std::function<void()>& action, Fault fault = Fault::input) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.fault() == fault);
    return error.what();
  }
  return "";
}

// Processor time of this process: a bound on it holds on a busy machine too.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

#define CHECK_REFUSED(message, part)   \
  do {                                 \
    const std::string text_ = message; \
    CAPTURE(text_);                    \
    CHECK(contains(text_, part));      \
  } while (false)

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

inline std::string to_hex(std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += digits[static_cast<uint8_t>(c) >> 4];
    text += digits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

// All bytes of a tensor in its own dtype, row-major.
inline std::string raw_bytes(const TensorSource& source, const TensorInfo& info) {
  std::string bytes(static_cast<size_t>(info.bytes()), '\0');
  source.read(info.name, info.dtype, bytes.data());
  return bytes;
}

inline std::string golden_folder() { return TERCET_SOURCE_DIR "/tests/golden/store/"; }

// The path of a file of the shared test data, or empty, with a message, when it is absent.
inline std::string shared_file(const std::string& name) {
  const char* folder = std::getenv("TERCET_SHARED_DATA");
  const std::string path = std::string(folder != nullptr ? folder : TERCET_SOURCE_DIR "/../shared/data") + "/" + name;
  if (std::filesystem::exists(path)) return path;
  MESSAGE("skipped: ", path, " is absent");
  return "";
}

// Checks that a source holds exactly the tensors, shapes, dtypes and bits of expected.json's entry.
inline void check_golden(const TensorSource& source, const std::string& entry) {
  static const Json expected = parse_json(read_file(golden_folder() + "expected.json"), "expected.json");
  const auto& tensors = expected.at(entry).as_object();
  CHECK(source.tensors().size() == tensors.size());
  for (const auto& tensor : tensors) {
    const std::string& name = tensor.first;
    const Json& values = tensor.second;
    CAPTURE(name);
    const TensorInfo& info = source.at(name);
    std::vector<int64_t> shape;
    for (const Json& size : values.as_array()[1].as_array()) shape.push_back(size.as_int());
    CHECK(dtype_name(info.dtype) == values.as_array()[0].as_string());
    CHECK(info.shape == shape);
    CHECK(to_hex(raw_bytes(source, info)) == values.as_array()[2].as_string());
  }
}

// One entry of a zip archive and what to write wrongly about it.
struct ZipEntry {
  std::string name;
  std::string data;
  uint16_t flags = 0;
  uint16_t method = 0;
  bool zip64 = false;            // sizes and offset in the ZIP64 extra field
  bool sizes_follow = false;     // bit 3: sizes of the local header are zero
  std::string local_name;        // when not empty, in the local header
  int64_t size_error = 0;        // added to the central sizes
  int64_t compressed_error = 0;  // added to the central compressed size
  int64_t offset_error = 0;      // added to the central offset of the local header
  int64_t local_size_error = 0;  // added to the local sizes
};

struct ZipOptions {
  bool zip64_end = false;
  std::string comment;
  std::string before_end;  // bytes between the directory and the end record
};

inline std::string zip_local(const ZipEntry& entry) {
  const auto size = static_cast<uint32_t>(static_cast<int64_t>(entry.data.size()) + entry.local_size_error);
  const uint32_t written = entry.sizes_follow ? 0 : entry.zip64 ? 0xFFFFFFFF : size;
  const std::string& name = entry.local_name.empty() ? entry.name : entry.local_name;
  const std::string padding = "FB" + bytes_of<uint16_t>(5) + "ZZZZZ";
  const auto flags = static_cast<uint16_t>(entry.flags | (entry.sizes_follow ? 8 : 0));
  return "PK\x03\x04" + bytes_of<uint16_t>(20) + bytes_of(flags) + bytes_of(entry.method) + bytes_of<uint32_t>(0) +
         bytes_of<uint32_t>(0) + bytes_of(written) + bytes_of(written) + bytes_of(static_cast<uint16_t>(name.size())) +
         bytes_of(static_cast<uint16_t>(padding.size())) + name + padding + entry.data;
}

inline std::string zip_central(const ZipEntry& entry, uint64_t offset) {
  const uint64_t size = entry.data.size() + static_cast<uint64_t>(entry.size_error);
  const uint64_t compressed = size + static_cast<uint64_t>(entry.compressed_error);
  offset += static_cast<uint64_t>(entry.offset_error);
  std::string extra;
  if (entry.zip64)
    extra = bytes_of<uint16_t>(0x5555) + bytes_of<uint16_t>(1) + "x" + bytes_of<uint16_t>(1) + bytes_of<uint16_t>(24) +
            bytes_of(size) + bytes_of(compressed) + bytes_of(offset);
  const auto field = [&](uint64_t value) { return bytes_of(entry.zip64 ? 0xFFFFFFFF : static_cast<uint32_t>(value)); };
  const auto flags = static_cast<uint16_t>(entry.flags | (entry.sizes_follow ? 8 : 0));
  return "PK\x01\x02" + bytes_of<uint16_t>(20) + bytes_of<uint16_t>(20) + bytes_of(flags) + bytes_of(entry.method) +
         bytes_of<uint32_t>(0) + bytes_of<uint32_t>(0) + field(compressed) + field(size) +
         bytes_of(static_cast<uint16_t>(entry.name.size())) + bytes_of(static_cast<uint16_t>(extra.size())) +
         bytes_of<uint16_t>(0) + bytes_of<uint16_t>(0) + bytes_of<uint16_t>(0) + bytes_of<uint32_t>(0) + field(offset) +
         entry.name + extra;
}

inline std::string zip_end64(uint64_t entries, uint64_t directory_bytes, uint64_t directory, uint64_t record) {
  return "PK\x06\x06" + bytes_of<uint64_t>(44) + bytes_of<uint16_t>(45) + bytes_of<uint16_t>(45) +
         bytes_of<uint32_t>(0) + bytes_of<uint32_t>(0) + bytes_of(entries) + bytes_of(entries) +
         bytes_of(directory_bytes) + bytes_of(directory) + "PK\x06\x07" + bytes_of<uint32_t>(0) + bytes_of(record) +
         bytes_of<uint32_t>(1);
}

inline std::string make_zip(const std::vector<ZipEntry>& entries, const ZipOptions& options = {}) {
  std::string zip;
  std::string central;
  for (const ZipEntry& entry : entries) {
    central += zip_central(entry, zip.size());
    zip += zip_local(entry);
  }
  const uint64_t directory = zip.size();
  zip += central + options.before_end;
  if (options.zip64_end) zip += zip_end64(entries.size(), central.size(), directory, zip.size());
  const auto count = options.zip64_end ? uint16_t{0xFFFF} : static_cast<uint16_t>(entries.size());
  const auto narrow = [&](uint64_t value) { return options.zip64_end ? 0xFFFFFFFF : static_cast<uint32_t>(value); };
  return zip + "PK\x05\x06" + bytes_of<uint32_t>(0) + bytes_of(count) + bytes_of(count) +
         bytes_of(narrow(central.size())) + bytes_of(narrow(directory)) +
         bytes_of(static_cast<uint16_t>(options.comment.size())) + options.comment;
}

// Pieces of protocol-2 pickles.
namespace pickle {

inline std::string text(std::string_view value) {
  return "X" + bytes_of(static_cast<uint32_t>(value.size())) + std::string(value);
}
inline std::string integer(int32_t value) { return "J" + bytes_of(value); }
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string bytes = "(";
  for (const std::string& item : items) bytes += item;
  return bytes + "t";
}
inline std::string integers(const std::vector<int32_t>& values) {
  std::vector<std::string> items;
  for (const int32_t value : values) items.push_back(integer(value));
  return tuple(items);
}
inline std::string ordered_dict() { return global("collections", "OrderedDict") + ")R"; }

struct TensorOptions {
  std::string type = "FloatStorage";
  std::string key = "0";
  int32_t storage = 0;
  int32_t offset = 0;
  std::vector<int32_t> shape;
  std::vector<int32_t> strides;
};

inline std::string storage(const TensorOptions& options) {
  return tuple({text("storage"), global("torch", options.type), text(options.key), text("cpu"),
                integer(options.storage)}) +
         "Q";
}

inline std::string tensor(const TensorOptions& options) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage(options), integer(options.offset), integers(options.shape), integers(options.strides), "\x89",
                ordered_dict()}) +
         "R";
}

// PROTO 2 ... STOP
inline std::string program(const std::string& body) { return "\x80\x02" + body + "."; }

// A state dict of one entry.
inline std::string state_dict(const std::string& name, const std::string& value) {
  return program("}" + text(name) + value + "s");
}

}  // namespace pickle

// A PyTorch file with this pickle and these storages ("0", "1", ...).
inline std::string torch_file(const std::string& program, const std::vector<std::string>& storages,
                              std::vector<ZipEntry> more = {}) {
  std::vector<ZipEntry> entries = {{.name = "archive/data.pkl", .data = program}};
  for (size_t i = 0; i < storages.size(); ++i)
    entries.push_back({.name = "archive/data/" + std::to_string(i), .data = storages[i]});
  for (ZipEntry& entry : more) entries.push_back(std::move(entry));
  return make_zip(entries);
}

}  // namespace tercet::test
