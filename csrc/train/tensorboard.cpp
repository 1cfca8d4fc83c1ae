#include "train/tensorboard.h"

#include <array>
#include <bit>
#include <cmath>

namespace tercet {
namespace {

// Little-endian bytes of a number.
template <class T>
void append_fixed(std::string& out, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>(value >> (8 * byte) & 0xFF);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Fields of a protocol buffer: a tag of number and wire type, then the value.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_tag(std::string& out, uint64_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_time) {
  std::string out;
  append_tag(out, 1, kFixed64);
  append_fixed(out, std::bit_cast<uint64_t>(wall_time));
  return out;
}

// Summary.Value {tag = 1, simple_value = 2}
std::string scalar(const std::string& name, double value) {
  std::string out;
  append_bytes(out, 1, name);
  append_tag(out, 2, kFixed32);
  append_fixed(out, std::bit_cast<uint32_t>(static_cast<float>(value)));
  return out;
}

// A checksum of a checksum should not be the checksum of both: records store it rotated and shifted.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

// Length, its checksum, the bytes, their checksum.
std::string record(const std::string& bytes) {
  std::string out;
  append_fixed(out, static_cast<uint64_t>(bytes.size()));
  append_fixed(out, masked_crc(out));
  out += bytes;
  append_fixed(out, masked_crc(bytes));
  return out;
}

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table.at(byte) = crc;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = make_crc_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string tensorboard_header(double wall_time) {
  std::string out = event(wall_time);
  append_bytes(out, 3, "brain.Event:2");  // file_version
  return record(out);
}

std::string tensorboard_record(double wall_time, int64_t step, const Json& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars.as_object()) {
    if (name == "step") continue;
    if (value.is_number())
      append_bytes(summary, 1, scalar(name, value.as_double()));
    else if (value.is_bool())
      append_bytes(summary, 1, scalar(name, value.as_bool() ? 1 : 0));
  }
  if (summary.empty()) return "";
  std::string out = event(wall_time);
  append_tag(out, 2, kVarint);
  append_varint(out, static_cast<uint64_t>(step));
  append_bytes(out, 5, summary);
  return record(out);
}

}  // namespace tercet
