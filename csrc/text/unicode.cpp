#include "text/unicode.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"

namespace tercet {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

#include "text/unicode_tables.inc"

constexpr char32_t last_code_point = 0x10FFFF;

char32_t classified_end() {
  char32_t end = 0;
  for (const std::span<const CodeRange> ranges :
       {std::span<const CodeRange>(letter_ranges), std::span<const CodeRange>(number_ranges),
        std::span<const CodeRange>(space_ranges)})
    end = std::max(end, static_cast<char32_t>(ranges.back().last + 1));
  return end;
}

// The class of every code point up to the last one that has a class.
std::vector<CharClass> make_class_table() {
  std::vector<CharClass> table(classified_end(), CharClass::other);
  const auto fill = [&](std::span<const CodeRange> ranges, CharClass char_class_of_ranges) {
    for (const CodeRange& range : ranges)
      for (char32_t code_point = range.first; code_point <= range.last; ++code_point)
        table[code_point] = char_class_of_ranges;
  };
  fill(letter_ranges, CharClass::letter);
  fill(number_ranges, CharClass::number);
  fill(space_ranges, CharClass::space);
  return table;
}

// The lead byte's part of a sequence: its length, the bits it gives, and the range of the second byte, which is
// narrower than 80-BF where overlong forms, surrogates or values beyond U+10FFFF begin (Unicode 16, table 3-7).
struct Lead {
  uint32_t length;
  char32_t bits;
  uint8_t second_low;
  uint8_t second_high;
};

Lead classify_lead(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, static_cast<char32_t>(byte & 0x1F), 0x80, 0xBF};
  if (byte >= 0xE0 && byte <= 0xEF)
    return {3, static_cast<char32_t>(byte & 0x0F), static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  if (byte >= 0xF0 && byte <= 0xF4)
    return {4, static_cast<char32_t>(byte & 0x07), static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0, 0};
}

}  // namespace

CharClass char_class(char32_t code_point) {
  static const std::vector<CharClass> table = make_class_table();
  return code_point < table.size() ? table[code_point] : CharClass::other;
}

Utf8Step decode_utf8_step(std::string_view text, size_t position) {
  using Status = Utf8Step::Status;
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte_at(position);
  if (first < 0x80) return {first, 1, Status::well_formed};
  const Lead lead = classify_lead(first);
  if (lead.length == 0) return {replacement_character, 1, Status::ill_formed};
  char32_t code_point = lead.bits;
  for (uint32_t taken = 1; taken < lead.length; ++taken) {
    if (position + taken == text.size()) return {replacement_character, taken, Status::truncated};
    const uint8_t next = byte_at(position + taken);
    const uint8_t low = taken == 1 ? lead.second_low : uint8_t{0x80};
    const uint8_t high = taken == 1 ? lead.second_high : uint8_t{0xBF};
    if (next < low || next > high) return {replacement_character, taken, Status::ill_formed};
    code_point = (code_point << 6) | (next & 0x3F);
  }
  return {code_point, lead.length, Status::well_formed};
}

void append_utf8(std::string& out, char32_t code_point) {
  TERCET_REQUIRE(code_point <= last_code_point && (code_point < 0xD800 || code_point > 0xDFFF),
                 "{:#x} is not a Unicode scalar value", static_cast<uint32_t>(code_point));
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

RepairedText replace_ill_formed_utf8(std::string_view text) {
  RepairedText repaired;
  repaired.text.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = decode_utf8_step(text, position);
    if (step.status == Utf8Step::Status::well_formed) {
      repaired.text.append(text.substr(position, step.bytes));
    } else {
      append_utf8(repaired.text, replacement_character);
      ++repaired.replacements;
    }
    position += step.bytes;
  }
  return repaired;
}

std::string_view strip_spaces(std::string_view text) {
  size_t begin = 0;
  size_t end = 0;
  bool started = false;
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = decode_utf8_step(text, position);
    const bool space = step.status == Utf8Step::Status::well_formed && char_class(step.code_point) == CharClass::space;
    if (!space && !started) {
      begin = position;
      started = true;
    }
    position += step.bytes;
    if (!space) end = position;
  }
  return started ? text.substr(begin, end - begin) : std::string_view{};
}

}  // namespace tercet
