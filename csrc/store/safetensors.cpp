#include "store/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_pages.h"

namespace tercet {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int kHeaderDepth = 3;  // header, tensor, shape
constexpr size_t kMaxHeaderItems = 4'000'000;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kRemedy = "copy or download the file again";

struct FormatDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};

// All dtypes of the format, in the order in which the reference implementation ranks them.
constexpr std::array kFormatDTypes = {
    FormatDType{"BOOL", 8, DType::u8},
    FormatDType{"F4", 4, std::nullopt},
    FormatDType{"F6_E2M3", 6, std::nullopt},
    FormatDType{"F6_E3M2", 6, std::nullopt},
    FormatDType{"U8", 8, DType::u8},
    FormatDType{"I8", 8, std::nullopt},
    FormatDType{"F8_E5M2", 8, std::nullopt},
    FormatDType{"F8_E4M3", 8, std::nullopt},
    FormatDType{"F8_E8M0", 8, std::nullopt},
    FormatDType{"F8_E4M3FNUZ", 8, std::nullopt},
    FormatDType{"F8_E5M2FNUZ", 8, std::nullopt},
    FormatDType{"I16", 16, std::nullopt},
    FormatDType{"U16", 16, std::nullopt},
    FormatDType{"F16", 16, DType::f16},
    FormatDType{"BF16", 16, DType::bf16},
    FormatDType{"I32", 32, DType::i32},
    FormatDType{"U32", 32, std::nullopt},
    FormatDType{"F32", 32, DType::f32},
    FormatDType{"C64", 64, std::nullopt},
    FormatDType{"F64", 64, DType::f64},
    FormatDType{"I64", 64, DType::i64},
    FormatDType{"U64", 64, std::nullopt},
};

const FormatDType* find_format_dtype(std::string_view name) {
  const auto* found =
      std::find_if(kFormatDTypes.begin(), kFormatDTypes.end(), [&](const FormatDType& d) { return d.name == name; });
  return found == kFormatDTypes.end() ? nullptr : found;
}

// The format's dtype in which tercet writes `dtype`: the one of that meaning that is not BOOL.
const FormatDType& format_dtype_of(DType dtype) {
  return *std::find_if(kFormatDTypes.begin() + 1, kFormatDTypes.end(),
                       [&](const FormatDType& d) { return d.dtype == dtype; });
}

// Refuses a header with more items than any model has before it is parsed, in one pass over its bytes.
void check_header_size(std::string_view header, const std::string& path) {
  size_t objects = 0;
  size_t items = 0;
  for (const char c : header) {
    objects += c == '{';
    items += c == ',' || c == '[';
  }
  if (objects > kMaxTensorsPerFile + 2)
    fail_input(fmt::format("the header lists more than {} tensors", kMaxTensorsPerFile), path,
               "give a file of model weights");
  if (items > kMaxHeaderItems)
    fail_input(fmt::format("the header has more than {} items", kMaxHeaderItems), path, "give a file of model weights");
}

std::string entry_name(const std::string& name) { return fmt::format("the tensor \"{}\"", printable(name)); }

uint64_t unsigned_at(const Json& value, const std::string& what, const std::string& path) {
  if (!value.is_integer() || (value.as_double() < 0))
    fail_input(fmt::format("{} has {} where the format has a non-negative integer", what, value.type_name()), path,
               kRemedy);
  return value.as_uint();
}

SafetensorsMetadata parse_metadata(const Json& value, const std::string& path) {
  if (!value.is_object()) fail_input(fmt::format("the header's \"{}\" is not an object", kMetadataKey), path, kRemedy);
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.as_object()) {
    if (!text.is_string())
      fail_input(fmt::format("the header's \"{}\" holds {} that is not a string", kMetadataKey, text.type_name()), path,
                 kRemedy);
    metadata.emplace_back(key, text.as_string());
  }
  return metadata;
}

}  // namespace

struct SafetensorsReader::Entry {
  std::string name;
  const FormatDType* dtype = nullptr;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

SafetensorsReader::SafetensorsReader(const std::string& path) : TensorSource(path), file_(path) { read_header(); }

void SafetensorsReader::read_header() {
  refuse_lfs_pointer(file_.text(), path());
  const uint64_t size = file_.size();
  if (size < kLengthBytes)
    fail_input(fmt::format("the file has {} bytes, too few for a safetensors header", size), path(), kRemedy);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_.bytes().data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    fail_input(fmt::format("the header claims {} bytes, more than {}; this is no safetensors file", header_bytes,
                           kMaxHeaderBytes),
               path(), kRemedy);
  if (header_bytes > size - kLengthBytes)
    fail_input(fmt::format("the header claims {} bytes but the file has only {}", header_bytes, size), path(), kRemedy);
  const std::string_view header = file_.text().substr(kLengthBytes, header_bytes);
  check_header_size(header, path());
  const Json json = parse_json(header, path() + " (header)", {.max_depth = kHeaderDepth});
  if (!json.is_object()) fail_input(fmt::format("the header is {}, not an object", json.type_name()), path(), kRemedy);
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.as_object()) {
    if (name == kMetadataKey) {
      metadata_ = parse_metadata(value, path());
    } else {
      entries.push_back(parse_entry(name, value));
    }
  }
  add_entries(std::move(entries), size - kLengthBytes - header_bytes);
}

SafetensorsReader::Entry SafetensorsReader::parse_entry(const std::string& name, const Json& value) const {
  const std::string what = entry_name(name);
  if (!value.is_object())
    fail_input(fmt::format("{} is described by {}, not by an object", what, value.type_name()), path(), kRemedy);
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* offsets = value.find("data_offsets");
  if (value.as_object().size() != 3 || dtype == nullptr || shape == nullptr || offsets == nullptr)
    fail_input(fmt::format("{} does not have exactly dtype, shape and data_offsets", what), path(), kRemedy);
  if (!dtype->is_string() || !shape->is_array() || !offsets->is_array() || offsets->as_array().size() != 2)
    fail_input(fmt::format("{} has a dtype, shape or data_offsets of the wrong type", what), path(), kRemedy);
  Entry entry;
  entry.name = name;
  entry.dtype = find_format_dtype(dtype->as_string());
  if (entry.dtype == nullptr)
    fail_input(fmt::format("{} has the unknown dtype \"{}\"", what, printable(dtype->as_string())), path(), kRemedy);
  for (const Json& dimension : shape->as_array()) entry.shape.push_back(unsigned_at(dimension, what, path()));
  entry.begin = unsigned_at(offsets->as_array()[0], what, path());
  entry.end = unsigned_at(offsets->as_array()[1], what, path());
  return entry;
}

void SafetensorsReader::add_entries(std::vector<Entry> entries, uint64_t buffer_bytes) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    const std::string what = entry_name(entry.name);
    if (entry.begin != position || entry.end < entry.begin)
      fail_input(fmt::format("{} lies at bytes {} to {} where byte {} is next: tensors overlap or leave a hole", what,
                             entry.begin, entry.end, position),
                 path(), kRemedy);
    position = entry.end;
    uint64_t bits = 1;
    bool overflow = false;
    for (const uint64_t dimension : entry.shape) overflow = overflow || __builtin_mul_overflow(bits, dimension, &bits);
    if (overflow || __builtin_mul_overflow(bits, entry.dtype->bits, &bits))
      fail_input(fmt::format("{} has a shape whose size overflows", what), path(), kRemedy);
    if (bits % 8 != 0) fail_input(fmt::format("{} has {} bits, which do not fill bytes", what, bits), path(), kRemedy);
    if (entry.end - entry.begin != bits / 8)
      fail_input(
          fmt::format("{} has {} bytes but its dtype and shape ask for {}", what, entry.end - entry.begin, bits / 8),
          path(), kRemedy);
  }
  if (position != buffer_bytes)
    fail_input(position < buffer_bytes
                   ? fmt::format("{} bytes follow the last tensor", buffer_bytes - position)
                   : fmt::format("the file is truncated: {} of {} bytes of tensors are there", buffer_bytes, position),
               path(), kRemedy);
  const uint64_t buffer_begin = file_.size() - buffer_bytes;
  for (Entry& entry : entries) {
    if (!entry.dtype->dtype)
      fail_input(
          fmt::format("{} has the dtype {}, which tercet does not read", entry_name(entry.name), entry.dtype->name),
          path(), "convert it to F32, F16 or BF16");
    TensorInfo info{std::move(entry.name), *entry.dtype->dtype, {}};
    for (const uint64_t dimension : entry.shape) {
      if (!std::in_range<int64_t>(dimension))
        fail_input(fmt::format("{} has an impossible shape", entry_name(info.name)), path(), kRemedy);
      info.shape.push_back(static_cast<int64_t>(dimension));
    }
    add(std::move(info));
    offsets_.push_back(buffer_begin + entry.begin);
  }
}

void SafetensorsReader::do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const {
  const DType stored = tensors()[index].dtype;
  const size_t begin = offsets_[index] + static_cast<size_t>(first) * dtype_size(stored);
  const auto part = file_.bytes().subspan(begin, static_cast<size_t>(count) * dtype_size(stored));
  convert_elements(stored, part.data(), dtype, target, count);
  release_pages(file_, part);
}

namespace {

void sort_for_writing(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::make_tuple(&format_dtype_of(b.dtype), std::string_view(a.name)) <
           std::make_tuple(&format_dtype_of(a.dtype), std::string_view(b.name));
  });
}

std::string make_header(const std::vector<TensorInfo>& tensors, const SafetensorsMetadata& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object texts;
    for (const auto& [key, text] : metadata) texts.emplace_back(key, text);
    header.emplace_back(kMetadataKey, Json(std::move(texts)));
  }
  int64_t position = 0;
  for (const TensorInfo& info : tensors) {
    Json::Array shape;
    for (const int64_t dimension : info.shape) shape.emplace_back(dimension);
    const int64_t end = checked_add(position, info.bytes());
    header.emplace_back(info.name, Json(Json::Object{{"dtype", Json(format_dtype_of(info.dtype).name)},
                                                     {"shape", Json(std::move(shape))},
                                                     {"data_offsets", Json(Json::Array{Json(position), Json(end)})}}));
    position = end;
  }
  std::string text = Json(std::move(header)).dump();
  text.resize(round_up<size_t>(text.size(), kLengthBytes), ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     const SafetensorsMetadata& metadata)
    : output_(path) {
  for (const TensorInfo& info : tensors) {
    check_tensor_info(info, path);
    TERCET_REQUIRE(info.name != kMetadataKey, "a tensor is named {}", kMetadataKey);
  }
  sort_for_writing(tensors);
  const std::string header = make_header(tensors, metadata);
  const uint64_t header_bytes = header.size();
  TERCET_REQUIRE(header_bytes <= kMaxHeaderBytes, "the header of {} has {} bytes", path, header_bytes);
  uint64_t position = kLengthBytes + header_bytes;
  for (TensorInfo& info : tensors) {
    const std::string name = info.name;
    const auto bytes = static_cast<uint64_t>(info.bytes());
    const int64_t elements = info.elements();
    const bool added = slots_.emplace(name, Slot{std::move(info), position, Coverage(elements)}).second;
    TERCET_REQUIRE(added, "the tensor name {} is used twice in {}", name, path);
    position += bytes;
  }
  output_.reserve(position);
  output_.write_at(0, std::as_bytes(std::span(&header_bytes, 1)));
  output_.write_at(kLengthBytes, std::as_bytes(std::span(header)));
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(const std::string& name) {
  const auto found = slots_.find(name);
  TERCET_REQUIRE(found != slots_.end(), "the tensor {} was not declared in {}", name, output_.path());
  return found->second;
}

void SafetensorsWriter::write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype,
                                   const void* source) {
  Slot& target = slot(name);
  TERCET_REQUIRE(convertible(source_dtype, target.info.dtype), "{} elements cannot be written to {}",
                 dtype_name(source_dtype), target.info.describe());
  target.coverage.add(first, count, name);
  output_.write_elements(target.offset + static_cast<uint64_t>(first) * dtype_size(target.info.dtype), source_dtype,
                         source, target.info.dtype, count);
}

void SafetensorsWriter::write(const std::string& name, DType source_dtype, const void* source) {
  write_part(name, 0, slot(name).info.elements(), source_dtype, source);
}

void SafetensorsWriter::finish() {
  for (const auto& [name, target] : slots_)
    TERCET_REQUIRE(target.coverage.missing() == 0, "{} elements of the tensor {} were never written to {}",
                   target.coverage.missing(), target.info.describe(), output_.path());
  output_.publish();
}

}  // namespace tercet
