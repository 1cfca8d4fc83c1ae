// A folder that is gone at the end of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace tercet::testing {

struct TemporaryFolder {
  TemporaryFolder() : path((std::filesystem::temp_directory_path() / "tercet-test-XXXXXX").string()) {
    if (::mkdtemp(path.data()) == nullptr) fail_errno("cannot create a temporary folder", path);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path + "/" + name; }

  // Writes a file and returns its path.
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }

  std::string path;
};

}  // namespace tercet::testing
