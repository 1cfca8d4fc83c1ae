#include "text/unicode.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/shared_data.h"

using namespace tercet;
using Status = Utf8Step::Status;

TEST_CASE("exactly 25 code points are spaces") {
  const std::u32string spaces =
      U"\x09\x0A\x0B\x0C\x0D\x20\x85\xA0\x1680\x2000\x2001\x2002\x2003\x2004\x2005\x2006\x2007\x2008\x2009\x200A\x2028"
      U"\x2029\x202F\x205F\x3000";
  CHECK(spaces.size() == 25);
  int found = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c)
    if (char_class(c) == CharClass::space) {
      CHECK(spaces.find(c) != std::u32string::npos);
      ++found;
    }
  CHECK(found == 25);
  for (const char32_t c : U"\x1C\x1D\x1E\x1F\x180E\x200B\xFEFF") CHECK(char_class(c) == CharClass::other);
}

TEST_CASE("classes of Unicode 16 at the places where versions and libraries differ") {
  CHECK(char_class(U'a') == CharClass::letter);
  CHECK(char_class(U'\u00AA') == CharClass::letter);
  CHECK(char_class(U'\u0663') == CharClass::number);  // Arabic-Indic three
  CHECK(char_class(U'\u00BD') == CharClass::number);  // one half, No
  CHECK(char_class(U'\u2167') == CharClass::number);  // Roman eight, Nl
  CHECK(char_class(U'\u0301') == CharClass::other);   // combining mark
  CHECK(char_class(U'\u0940') == CharClass::other);   // Devanagari vowel sign
  CHECK(char_class(U'_') == CharClass::other);
  CHECK(char_class(0x105C0) == CharClass::letter);  // Todhri, new in 16
  CHECK(char_class(0x10940) == CharClass::other);   // new in 17
  CHECK(char_class(0xD800) == CharClass::other);
  CHECK(char_class(0x110000) == CharClass::other);
  CHECK(char_class(0xFFFFFFFF) == CharClass::other);
}

TEST_CASE("the committed table holds the measured ranges") {
  TERCET_SHARED_DATA_OR_SKIP(path, "unicode16_LNS_ranges.json");
  const Json ranges = parse_json(read_file(path), path);
  std::vector<CharClass> expected(0x110000, CharClass::other);
  const auto fill = [&](const char* key, CharClass value) {
    for (const Json& range : ranges.at(key).as_array())
      for (int64_t c = range.as_array()[0].as_int(); c <= range.as_array()[1].as_int(); ++c)
        expected[static_cast<size_t>(c)] = value;
  };
  fill("L", CharClass::letter);
  fill("N", CharClass::number);
  fill("S", CharClass::space);
  int64_t wrong = 0;
  for (char32_t c = 0; c < 0x110000; ++c) wrong += char_class(c) != expected[c] ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("every scalar value survives encoding and decoding") {
  int64_t wrong = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = decode_utf8_step(text, 0);
    wrong += step.code_point != c || step.bytes != text.size() || step.status != Status::well_formed ? 1 : 0;
  }
  CHECK(wrong == 0);
  std::string text;
  CHECK_THROWS(append_utf8(text, 0xD800));
  CHECK_THROWS(append_utf8(text, 0x110000));
}

TEST_CASE("each maximal ill-formed subpart becomes one U+FFFD") {
  const std::string r = "\xEF\xBF\xBD";
  struct Case {
    std::string text;
    std::string repaired;
    int64_t replacements;
  };
  // The first three are the examples of Unicode 16, tables 3-8 to 3-10.
  const std::vector<Case> cases = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", r + r + r + r + r + r + r + r + "A", 8},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A", 8},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B", 7},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A", 4},
      {"a\xE2\x82", "a" + r, 1},
      {std::string("a\0b", 3), std::string("a\0b", 3), 0},
      {"", "", 0},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80", 0},
  };
  for (const Case& c : cases) {
    const RepairedText repaired = replace_ill_formed_utf8(c.text);
    CHECK(repaired.text == c.repaired);
    CHECK(repaired.replacements == c.replacements);
  }
}

TEST_CASE("a sequence cut by the end of the text is truncated, not ill-formed") {
  CHECK(decode_utf8_step("\xF0\x9F\x98", 0).status == Status::truncated);
  CHECK(decode_utf8_step("\xF0\x9F\x98", 0).bytes == 3);
  CHECK(decode_utf8_step("\xF0\x9F\x41", 0).status == Status::ill_formed);
  CHECK(decode_utf8_step("\xC0", 0).status == Status::ill_formed);
}

TEST_CASE("strip_spaces removes all 25 spaces at both ends and nothing else") {
  CHECK(strip_spaces(" \t\n a b \xE3\x80\x80\xC2\xA0") == "a b");
  CHECK(strip_spaces(" \n ").empty());
  CHECK(strip_spaces("").empty());
  CHECK(strip_spaces("\xE2\x80\x8B x") == "\xE2\x80\x8B x");  // U+200B is no space
  CHECK(strip_spaces(" \xA0 ") == "\xA0");                    // a lone byte is no space
}
