#include "kernels/emulator/launch_log.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.h"

namespace tercet::emu {
namespace {

uintptr_t offset_in_library(const void* address) {
  Dl_info image{};
  const bool found = dladdr(address, &image) != 0;
  return reinterpret_cast<uintptr_t>(address) - (found ? reinterpret_cast<uintptr_t>(image.dli_fbase) : 0);
}

class LaunchLog {
 public:
  LaunchLog() {
    if (const char* path = std::getenv("TERCET_EMU_LAUNCHES"); path != nullptr) path_ = path;
  }
  ~LaunchLog() {
    if (path_.empty()) return;
    std::FILE* file = std::fopen(path_.c_str(), "w");
    if (file == nullptr) {
      log::warn("{} cannot be written", path_);
      return;
    }
    for (const auto& [kernel, launches] : launches_)
      std::fprintf(file, "%016zx %zu\n", size_t{offset_in_library(kernel)}, launches);
    std::fclose(file);
  }
  LaunchLog(const LaunchLog&) = delete;
  LaunchLog& operator=(const LaunchLog&) = delete;

  void count(const void* kernel) {
    if (!path_.empty()) ++launches_[kernel];
  }

 private:
  std::string path_;
  std::map<const void*, size_t> launches_;
};

}  // namespace

void count_launch(const void* kernel) {
  static LaunchLog launches;
  launches.count(kernel);
}

}  // namespace tercet::emu
