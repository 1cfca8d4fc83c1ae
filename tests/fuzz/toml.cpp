// Fuzzer of the TOML reader. What is read must be the same after it is written and read again.
#include "train/toml.h"

#include "fuzz/fuzz.h"

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<TomlEntry> entries;
  if (!fuzz::reads([&] { entries = parse_toml(fuzz::text_of(data, size), "input"); })) return 0;
  std::string text, table;
  for (const TomlEntry& entry : entries) {
    if (entry.table != table) text += toml_table(table = entry.table);
    text += toml_line(entry.key, entry.value);
  }
  const std::vector<TomlEntry> again = parse_toml(text, "written");
  if (again.size() != entries.size()) std::abort();
  for (size_t i = 0; i < entries.size(); ++i)
    if (again[i].table != entries[i].table || again[i].key != entries[i].key || again[i].value != entries[i].value)
      std::abort();
  return 0;
}
