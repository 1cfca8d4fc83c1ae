// Fuzzer of the safetensors reader. Half of the mutations keep the file whole: the header's length, offsets that follow
// each other, and as many bytes as the last one says.
#include "store/safetensors.h"

#include <cstring>

#include "fuzz/json_mutator.h"
#include "fuzz/readable.h"

namespace tercet::fuzz {
namespace {

constexpr size_t kMaxDataBytes = 4096;

std::string with_header(std::string header, size_t data_bytes) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + std::string(data_bytes, '\x3c');
}

size_t bytes_of(const Json& entry) {
  size_t bytes = 4;
  if (const Json* shape = entry.find("shape"); shape != nullptr && shape->is_array())
    for (const Json& dimension : shape->as_array())
      if (dimension.is_integer() && dimension.as_double() >= 0) bytes *= std::min<size_t>(dimension.as_uint(), 1024);
  const Json* dtype = entry.find("dtype");
  if (dtype == nullptr) return bytes;
  if (*dtype == Json("F16") || *dtype == Json("BF16")) return bytes / 2;
  if (*dtype == Json("F64") || *dtype == Json("I64")) return bytes * 2;
  return *dtype == Json("U8") || *dtype == Json("BOOL") ? bytes / 4 : bytes;
}

// Sets all offsets so that the tensors tile the buffer; returns its size.
size_t tile(Json& header) {
  size_t position = 0;
  for (auto& [name, entry] : header.as_object()) {
    if (name == "__metadata__" || entry.find("data_offsets") == nullptr) continue;
    const size_t end = position + bytes_of(entry);
    entry.set("data_offsets", Json(Json::Array{Json(uint64_t{position}), Json(uint64_t{end})}));
    position = end;
  }
  return std::min(position, kMaxDataBytes);
}

}  // namespace
}  // namespace tercet::fuzz

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("model.safetensors", fuzz::text_of(data, size));
  fuzz::reads([&] { fuzz::read_tensors(SafetensorsReader(path)); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  uint64_t header_bytes = 0;
  if (size >= 8) std::memcpy(&header_bytes, data, 8);
  if (seed % 2 == 0 || size < 8 || header_bytes > size - 8) return LLVMFuzzerMutate(data, size, max_size);
  const std::string_view header = fuzz::text_of(data + 8, header_bytes);
  std::string changed = fuzz::mutated_json(header, header_bytes + 32, seed / 2);
  Json json;
  size_t data_bytes = size - 8 - header_bytes;
  if (seed % 8 != 1 && fuzz::reads([&] { json = parse_json(changed, "header"); }) && json.is_object()) {
    data_bytes = fuzz::tile(json);
    changed = json.dump();
  }
  return fuzz::give(fuzz::with_header(changed, data_bytes), data, size, max_size);
}
