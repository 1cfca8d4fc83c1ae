// Unicode as byte-level BPE needs it: UTF-8, and the classes letter, number and space of Unicode 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tercet {

// What a code point is to the pre-tokenizer: a letter is \p{L}, a number is \p{N}, a space is one of the 25 code points
// of \s (U+0009-000D, 0020, 0085, 00A0, 1680, 2000-200A, 2028, 2029, 202F, 205F, 3000), and the rest, unassigned code
// points among it, is `other`. The tables are unicode_tables.inc, written by make_unicode_tables.py.
enum class CharClass : uint8_t { other, letter, number, space };

// The class of any 32-bit value; values beyond U+10FFFF are `other`.
CharClass char_class(char32_t code_point);

constexpr char32_t replacement_character = 0xFFFD;

// One step of UTF-8 decoding.
struct Utf8Step {
  enum class Status : uint8_t {
    well_formed,
    ill_formed,  // the bytes are a maximal subpart of an ill-formed sequence (Unicode 16, section 3.9)
    truncated,   // the text ends inside a sequence that is well formed so far
  };
  char32_t code_point;  // U+FFFD unless well_formed
  uint32_t bytes;       // bytes taken, 1 to 4
  Status status;
};

// Decodes the sequence that starts at `position` < text.size(). Surrogates, overlong forms and values beyond U+10FFFF
// are ill-formed.
Utf8Step decode_utf8_step(std::string_view text, size_t position);

// Appends the UTF-8 form of a code point, which must be a Unicode scalar value.
void append_utf8(std::string& out, char32_t code_point);

struct RepairedText {
  std::string text;
  int64_t replacements = 0;
};

// The text with each maximal ill-formed subpart replaced by U+FFFD (the practice of the WHATWG Encoding Standard), and
// how many were replaced.
RepairedText replace_ill_formed_utf8(std::string_view text);

// The text without leading and trailing spaces (CharClass::space). Ill-formed bytes are not spaces.
std::string_view strip_spaces(std::string_view text);

}  // namespace tercet
