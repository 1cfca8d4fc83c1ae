// The part of TOML that configurations need: tables, and keys with strings, integers, reals, booleans and arrays of
// these.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tercet {

struct TomlEntry {
  std::string table;  // "" before the first [table]
  std::string key;
  Json value;
  int line = 0;
};

// The entries of a document in their order. Throws Error(Fault::input, "where:line") on a syntax error, a key or table
// that appears twice, and on the parts of TOML that are not read (dates, inline tables, arrays of tables, multi-line
// strings, dotted keys).
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& where);

struct TomlTable {
  std::string name;
  int line = 0;
};

// The same with the tables in their order, empty ones too.
struct TomlDocument {
  std::vector<TomlTable> tables;
  std::vector<TomlEntry> entries;
};
TomlDocument parse_toml_document(std::string_view text, const std::string& where);

// "key = value\n"; null, objects and non-finite reals cannot be written and throw Error(Fault::run).
std::string toml_line(std::string_view key, const Json& value);

// "[name]\n"
std::string toml_table(std::string_view name);

}  // namespace tercet
