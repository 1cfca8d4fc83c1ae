#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace tercet {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

constexpr char32_t first_shifted_symbol = 0x100;
constexpr char32_t symbols_end = first_shifted_symbol + 68;

struct SymbolTables {
  std::array<std::string, 256> of_byte;
  std::array<int16_t, symbols_end> byte_of{};  // -1: no symbol
};

SymbolTables make_symbol_tables() {
  SymbolTables tables;
  tables.byte_of.fill(-1);
  char32_t next_shifted = first_shifted_symbol;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t symbol = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next_shifted++;
    append_utf8(tables.of_byte[static_cast<size_t>(byte)], symbol);
    tables.byte_of[symbol] = static_cast<int16_t>(byte);
  }
  return tables;
}

const SymbolTables& symbol_tables() {
  static const SymbolTables tables = make_symbol_tables();
  return tables;
}

struct Char {
  CharClass char_class;
  uint32_t bytes;
};

Char char_at(std::string_view text, size_t position) {
  const Utf8Step step = decode_utf8_step(text, position);
  return {step.status == Utf8Step::Status::well_formed ? char_class(step.code_point) : CharClass::other, step.bytes};
}

// The bytes of 's 't 're 've 'm 'll 'd at `begin`, which holds an apostrophe; 0 when none is there.
size_t contraction_bytes(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"})
    if (rest.starts_with(ending)) return 1 + ending.size();
  return 0;
}

size_t run_end(std::string_view text, size_t position, CharClass char_class_of_run) {
  while (position < text.size()) {
    const Char next = char_at(text, position);
    if (next.char_class != char_class_of_run) break;
    position += next.bytes;
  }
  return position;
}

// A run of spaces ends before its last one when something else follows: that last one begins the next piece.
size_t spaces_end(std::string_view text, size_t begin) {
  size_t last = begin;
  size_t position = begin;
  while (position < text.size()) {
    const Char next = char_at(text, position);
    if (next.char_class != CharClass::space) return last == begin ? position : last;
    last = position;
    position += next.bytes;
  }
  return position;
}

}  // namespace

size_t piece_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t bytes = contraction_bytes(text, begin); bytes > 0) return begin + bytes;
  const size_t run_begin = begin + (text[begin] == ' ' ? 1 : 0);
  if (run_begin == text.size()) return run_begin;
  const Char first = char_at(text, run_begin);
  if (first.char_class == CharClass::space) return spaces_end(text, begin);
  return run_end(text, run_begin + first.bytes, first.char_class);
}

std::string_view byte_symbol(uint8_t byte) { return symbol_tables().of_byte[byte]; }

std::string to_symbols(std::string_view bytes) {
  std::string symbols;
  symbols.reserve(bytes.size());
  for (const char byte : bytes) symbols += byte_symbol(static_cast<uint8_t>(byte));
  return symbols;
}

std::optional<std::string> from_symbols(std::string_view symbols) {
  std::string bytes;
  bytes.reserve(symbols.size());
  for (size_t position = 0; position < symbols.size();) {
    const Utf8Step step = decode_utf8_step(symbols, position);
    if (step.status != Utf8Step::Status::well_formed || step.code_point >= symbols_end) return std::nullopt;
    const int16_t byte = symbol_tables().byte_of[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    position += step.bytes;
  }
  return bytes;
}

}  // namespace tercet
