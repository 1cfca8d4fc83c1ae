#include "train/toml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "text/unicode.h"

namespace tercet {
namespace {

bool is_bare_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// Whether all of the text is a number that T holds.
template <class T>
bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  TomlDocument document() {
    require_utf8();
    for (skip_blank_lines(); !at_end(); skip_blank_lines()) {
      if (peek() == '[')
        table();
      else
        entry();
      end_of_line();
    }
    return std::move(document_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = "") const {
    fail_input(what, fmt::format("{}:{}", where_, line_), remedy);
  }

  void require_utf8() const {
    int line = 1;
    for (size_t position = 0; position < text_.size();) {
      const Utf8Step step = decode_utf8_step(text_, position);
      if (step.status != Utf8Step::Status::well_formed)
        fail_input("not valid UTF-8", fmt::format("{}:{}", where_, line), "save the file as UTF-8");
      line += step.code_point == U'\n' ? 1 : 0;
      position += step.bytes;
    }
  }

  bool at_end() const { return position_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  bool take(char c) {
    if (at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t') ++position_;
  }
  void skip_comment() {
    if (peek() != '#') return;
    while (!at_end() && peek() != '\n') ++position_;
  }
  bool take_line_end() {
    if (text_.substr(position_, 2) == "\r\n") ++position_;
    if (!take('\n')) return false;
    ++line_;
    return true;
  }
  void skip_blank_lines() {
    do {
      skip_spaces();
      skip_comment();
    } while (take_line_end());
  }
  void end_of_line() {
    skip_spaces();
    skip_comment();
    if (!at_end() && !take_line_end()) fail(fmt::format("unexpected '{}' after the value", peek()));
  }

  std::string key() {
    if (peek() == '"' || peek() == '\'') return string();
    const size_t begin = position_;
    while (is_bare_key_character(peek())) ++position_;
    if (position_ == begin) fail("expected a key", "write `key = value`, one per line");
    return std::string(text_.substr(begin, position_ - begin));
  }

  void table() {
    take('[');
    if (peek() == '[') fail("arrays of tables are not read", "use [name]");
    skip_spaces();
    table_ = key();
    skip_spaces();
    if (peek() == '.') fail("dotted names are not read", "use [name]");
    if (!take(']')) fail("expected ']' after the name of the table");
    if (!table_names_.insert(table_).second)
      fail(fmt::format("the table [{}] appears twice", table_), "leave one of them out");
    document_.tables.push_back({table_, line_});
  }

  void entry() {
    TomlEntry entry{.table = table_, .key = key(), .value = {}, .line = line_};
    skip_spaces();
    if (peek() == '.') fail("dotted keys are not read", "use a [table]");
    if (!take('=')) fail(fmt::format("expected '=' after \"{}\"", entry.key));
    skip_spaces();
    entry.value = value(0);
    if (!keys_.insert(entry.table + '\n' + entry.key).second)
      fail(fmt::format("the key \"{}\" appears twice", entry.key), "leave one of them out");
    document_.entries.push_back(std::move(entry));
  }

  Json value(int depth) {
    const char c = peek();
    if (c == '"' || c == '\'') return Json(string());
    if (c == '[') return array(depth);
    if (c == '{') fail("inline tables are not read", "use a [table]");
    return word();
  }

  Json array(int depth) {
    if (depth >= 8) fail("arrays nested deeper than 8 levels");
    take('[');
    Json items = Json::array();
    for (skip_blank_lines(); !take(']'); skip_blank_lines()) {
      if (at_end()) fail("the array has no ']'");
      items.push_back(value(depth + 1));
      skip_blank_lines();
      if (at_end()) fail("the array has no ']'");
      if (!take(',') && peek() != ']') fail("expected ',' or ']' in the array");
    }
    return items;
  }

  std::string string() {
    const char quote = text_[position_];
    if (text_.substr(position_, 3) == std::string(3, quote)) fail("multi-line strings are not read");
    ++position_;
    std::string out;
    while (!take(quote)) {
      if (at_end() || peek() == '\n') fail("the string has no closing quote");
      const char c = text_[position_++];
      if (c == '\\' && quote == '"')
        escape(out);
      else
        out += c;
    }
    return out;
  }

  void escape(std::string& out) {
    static constexpr std::string_view names = "btnfr\"\\", characters = "\b\t\n\f\r\"\\";
    const char c = peek();
    ++position_;
    if (c == 'u' || c == 'U') return append_utf8(out, code_point(c == 'u' ? 4 : 8));
    const size_t index = names.find(c);
    if (index == std::string_view::npos) fail(fmt::format("unknown escape \"\\{}\" in a string", c));
    out += characters[index];
  }

  uint32_t code_point(size_t digits) {
    uint32_t code = 0;
    const std::string_view text = text_.substr(position_, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + text.size() || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      fail("bad code point in a string");
    position_ += digits;
    return code;
  }

  // A boolean or a number.
  Json word() {
    const size_t begin = position_;
    while (!at_end() && std::string_view(" \t\r\n,]#").find(peek()) == std::string_view::npos) ++position_;
    const std::string_view written = text_.substr(begin, position_ - begin);
    if (written == "true") return Json(true);
    if (written == "false") return Json(false);
    std::string digits(written);
    std::erase(digits, '_');
    if (!digits.empty() && digits[0] == '+') digits.erase(0, 1);
    if (digits.find_first_not_of("0123456789+-.eE") == std::string::npos && !digits.empty()) {
      if (int64_t integer = 0; parse_whole(digits, integer)) return Json(integer);
      if (uint64_t integer = 0; parse_whole(digits, integer)) return Json(integer);
      if (double real = 0; parse_whole(digits, real) && std::isfinite(real)) return Json(real);
    }
    fail(fmt::format("cannot read the value `{}`", written), "put texts in quotes");
  }

  std::string_view text_;
  const std::string& where_;
  size_t position_ = 0;
  int line_ = 1;
  std::string table_;
  std::set<std::string> table_names_, keys_;
  TomlDocument document_;
};

// JSON's strings are TOML's basic strings, but for DEL.
std::string quoted(std::string_view text) {
  std::string out = Json(text).dump();
  for (size_t at = out.find('\x7f'); at != std::string::npos; at = out.find('\x7f')) out.replace(at, 1, "\\u007F");
  return out;
}

std::string toml_value(const Json& value) {
  if (value.is_string()) return quoted(value.as_string());
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& item : value.as_array()) out += (out.size() > 1 ? ", " : "") + toml_value(item);
    return out + "]";
  }
  TERCET_REQUIRE(value.is_bool() || (value.is_number() && std::isfinite(value.as_double())),
                 "{} cannot be written as TOML", value.type_name());
  return value.dump();
}

std::string toml_key(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, is_bare_key_character) ? std::string(key) : quoted(key);
}

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& where) {
  return parse_toml_document(text, where).entries;
}

TomlDocument parse_toml_document(std::string_view text, const std::string& where) {
  return Parser(text, where).document();
}

std::string toml_line(std::string_view key, const Json& value) {
  return toml_key(key) + " = " + toml_value(value) + "\n";
}

std::string toml_table(std::string_view name) { return "[" + toml_key(name) + "]\n"; }

}  // namespace tercet
