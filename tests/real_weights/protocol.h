// How published figures of OPT models are measured: the text and windows of WikiText-2's perplexity, and a list of
// checks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"
#include "text/tokenizer.h"

namespace tercet::testing {

// The text of a raw WikiText file as its perplexity is measured: a line of spaces becomes an empty row, others keep
// their line feed, rows are joined by two line feeds.
inline std::string joined_rows(std::string_view raw) {
  std::string text;
  for (size_t begin = 0, end; begin < raw.size(); begin = end + 1) {
    end = std::min(raw.find('\n', begin), raw.size() - 1);
    const std::string_view row = raw.substr(begin, end + 1 - begin);
    if (begin > 0) text += "\n\n";
    if (row.find_first_not_of(" \n") != std::string_view::npos) text += row;
  }
  return text;
}

// Id 2 and the ids of the whole text, encoded at once.
inline std::vector<int32_t> text_ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = {Tokenizer::end_id};
  const std::vector<int32_t> rest = tokenizer.encode(text);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// Windows that follow each other without overlap; the rest at the end is left out.
inline std::vector<std::vector<int32_t>> windows_of(const std::vector<int32_t>& ids, size_t length) {
  std::vector<std::vector<int32_t>> windows;
  for (size_t begin = 0; begin + length <= ids.size(); begin += length)
    windows.emplace_back(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(begin + length));
  return windows;
}

// SHA-256 of the ids as little-endian 32-bit integers, in hexadecimal digits.
inline std::string sha256_of(const std::vector<int32_t>& ids) {
  const TemporaryFolder folder;
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  const std::string file = folder.file("ids", bytes);
  if (std::system(fmt::format("sha256sum < '{}' > '{}/sum'", file, folder.path).c_str()) != 0)
    fail_run("cannot run sha256sum", file);
  return read_file(folder.path + "/sum").substr(0, 64);
}

// Prints a line for each check and counts.
class Checks {
 public:
  void value(const std::string& what, double seen, double expected, double tolerance) {
    print(what, fmt::format("{:.6g}", seen), fmt::format("{:.6g} within {:.2g}", expected, tolerance),
          std::fabs(seen - expected) <= tolerance);
  }

  template <class T>
  void equal(const std::string& what, const T& seen, const T& expected) {
    print(what, fmt::format("{}", seen), fmt::format("{}", expected), seen == expected);
  }

  // What could not be measured counts as a check that does not hold.
  void missing(const std::string& what, const std::string& why) { print(what, "not measured", why, false); }

  // 0 when all hold.
  int finish() const {
    fmt::print("{} of {} hold\n", held_, count_);
    return held_ == count_ && count_ > 0 ? 0 : 1;
  }

 private:
  void print(const std::string& what, const std::string& seen, const std::string& expected, bool holds) {
    fmt::print("{:6} {}: {} (expected {})\n", holds ? "ok" : "FAILED", what, seen, expected);
    std::fflush(stdout);
    ++count_;
    held_ += holds ? 1 : 0;
  }

  int count_ = 0, held_ = 0;
};

}  // namespace tercet::testing
