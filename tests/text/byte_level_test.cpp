#include "text/byte_level.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace tercet;

namespace {

std::vector<std::string> pieces(const std::string& text) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(text, begin);
    found.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("a word takes the one space before it, a number and a sign too") {
  CHECK(pieces("Hello world  12 !?") == Pieces{"Hello", " world", " ", " 12", " !?"});
  CHECK(pieces("abc123_x") == Pieces{"abc", "123", "_", "x"});
}

TEST_CASE("contractions are cut off in lower case only, and only after a straight apostrophe") {
  CHECK(pieces("I'm we'll don't 're") == Pieces{"I", "'m", " we", "'ll", " don", "'t", " '", "re"});
  CHECK(pieces("I'M it\u2019s") == Pieces{"I", "'", "M", " it", "\u2019", "s"});
  CHECK(pieces("''s") == Pieces{"''", "s"});
  CHECK(pieces("'") == Pieces{"'"});
  CHECK(pieces("'l") == Pieces{"'", "l"});
  CHECK(pieces("'sx") == Pieces{"'s", "x"});
}

TEST_CASE("the last of several spaces before something goes with what follows") {
  CHECK(pieces("a\n\nb") == Pieces{"a", "\n", "\n", "b"});
  CHECK(pieces("a\n\n\nb") == Pieces{"a", "\n\n", "\n", "b"});
  CHECK(pieces("a\n \n b") == Pieces{"a", "\n \n", " b"});
  CHECK(pieces("\ta") == Pieces{"\t", "a"});
  CHECK(pieces("a \xC2\xA0 ") == Pieces{"a", " \xC2\xA0 "});
  CHECK(pieces("a\xC2\xA0\xC2\xA0z") == Pieces{"a", "\xC2\xA0", "\xC2\xA0", "z"});
  CHECK(pieces(" ") == Pieces{" "});
}

TEST_CASE("ill-formed bytes and NUL are neither letters nor spaces") {
  CHECK(pieces("a\xFF\xFE z") == Pieces{"a", "\xFF\xFE", " z"});
  CHECK(pieces(" \x80") == Pieces{" \x80"});
  CHECK(pieces(std::string("a\0\0b", 4)) == Pieces{"a", std::string("\0\0", 2), "b"});
}

TEST_CASE("bytes and symbols are one to one") {
  CHECK(byte_symbol(' ') == "\u0120");
  CHECK(byte_symbol('\n') == "\u010A");
  CHECK(byte_symbol('a') == "a");
  CHECK(byte_symbol(0) == "\u0100");
  CHECK(byte_symbol(0xAD) == "\u0143");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(from_symbols(to_symbols(all)) == all);
  CHECK_FALSE(from_symbols("a b").has_value());
  CHECK_FALSE(from_symbols("\u0144").has_value());
  CHECK_FALSE(from_symbols("\u00AD").has_value());
  CHECK_FALSE(from_symbols("\xFF").has_value());
  CHECK(from_symbols("") == "");
}
