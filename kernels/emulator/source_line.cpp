#include "kernels/emulator/source_line.h"

#include <dlfcn.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tercet::emu {
namespace {

// The path from the last folder called kernels or tests on.
std::string shorten(std::string_view path) {
  for (const std::string_view folder : {"/kernels/", "/tests/"})
    if (const size_t at = path.rfind(folder); at != std::string_view::npos) return std::string(path.substr(at + 1));
  return std::string(path);
}

std::vector<std::string> output_lines(const std::string& command) {
  std::vector<std::string> lines;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char line[4096];
  while (pipe && std::fgets(line, sizeof(line), pipe.get()) != nullptr) {
    lines.emplace_back(line);
    while (!lines.back().empty() && lines.back().back() == '\n') lines.back().pop_back();
  }
  return lines;
}

}  // namespace

std::string source_line(uintptr_t code) {
  Dl_info image{};
  if (dladdr(reinterpret_cast<void*>(code), &image) == 0) return fmt::format("address {:#x}", code);
  const uintptr_t offset = code - reinterpret_cast<uintptr_t>(image.dli_fbase);
  const std::string command = fmt::format("addr2line -i -e '{}' {:#x} 2>/dev/null", image.dli_fname, offset);
  std::string places;
  for (const std::string& line : output_lines(command)) {
    const bool unknown = line.starts_with("??") || line.find(":?") != std::string::npos;
    if (unknown || line.starts_with("/usr/")) continue;  // system headers say nothing
    const std::string place = shorten(std::string_view(line).substr(0, line.find(" (")));
    places += (places.empty() ? "" : ", called at ") + place;
  }
  return places.empty() ? fmt::format("{}+{:#x}", image.dli_fname, offset) : places;
}

std::string source_line(const std::source_location& site) {
  return fmt::format("{}:{}", shorten(site.file_name()), site.line());
}

}  // namespace tercet::emu
