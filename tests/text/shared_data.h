// Where the tests find real data that is not part of the project.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace tercet::testing {

// The path of a data file: in the folder that TERCET_SHARED_DATA names, by default shared/data beside the checkout;
// nothing when it is absent.
inline std::optional<std::string> shared_data(const std::string& name) {
  const char* folder = std::getenv("TERCET_SHARED_DATA");
  const std::filesystem::path path =
      std::filesystem::path(folder != nullptr ? folder : TERCET_SOURCE_DIR "/../shared/data") / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

}  // namespace tercet::testing

// Ends the test case with a message when a data file is absent.
#define TERCET_SHARED_DATA_OR_SKIP(variable, name)                           \
  const auto variable##_found = ::tercet::testing::shared_data(name);        \
  if (!variable##_found) {                                                   \
    MESSAGE("skipped: " << (name) << " is absent (set TERCET_SHARED_DATA)"); \
    return;                                                                  \
  }                                                                          \
  const std::string& variable = *variable##_found
