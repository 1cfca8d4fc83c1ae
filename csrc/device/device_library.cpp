#include "device/device_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace tercet {
namespace {

// A library, and how to have one.
struct Library {
  const char* device;
  const char* file;
  const char* variable;
  const char* remedy;
};

constexpr Library kCuda = {"cuda", "libtercet_cuda.so", "TERCET_CUDA_LIBRARY",
                           "build it where nvcc is installed (make, or cmake -DTERCET_CUDA=ON), or use cpu or auto"};
constexpr Library kEmulator = {"emu", "libtercet_emu.so", "TERCET_EMU_LIBRARY",
                               "build it with g++ on x86-64 (cmake -DTERCET_EMULATOR=ON), or use cpu or auto"};

// The library's path, or "" when there is none.
std::string find_file(const Library& library) {
  if (const char* path = std::getenv(library.variable); path != nullptr) return path;
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& candidate : {folder / library.file, folder.parent_path() / library.file})
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  return "";
}

void* load(const Library& library) {
  const std::string path = find_file(library);
  if (path.empty())
    fail_input(fmt::format("this build has no `{}` device: {} is missing", library.device, library.file), "--device",
               library.remedy);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    fail_input(fmt::format("the `{}` device cannot be loaded: {}", library.device, dlerror()), "--device",
               library.remedy);
  return handle;
}

template <class Function>
Function find_function(const Library& library, void* handle, const char* name) {
  const auto function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr)
    fail_input(fmt::format("{} is not a library of the `{}` device", find_file(library), library.device),
               library.variable, fmt::format("name a {} of this version", library.file));
  return function;
}

using Open = Device* (*)();
using Count = int (*)();

}  // namespace

std::unique_ptr<Device> open_cuda() {
  static const auto open = find_function<Open>(kCuda, load(kCuda), "tercet_cuda_open");
  return std::unique_ptr<Device>(open());
}

std::unique_ptr<Device> open_emulator() {
  static const auto open = find_function<Open>(kEmulator, load(kEmulator), "tercet_emulator_open");
  return std::unique_ptr<Device>(open());
}

int cuda_gpus() {
  if (find_file(kCuda).empty()) return 0;
  return find_function<Count>(kCuda, load(kCuda), "tercet_cuda_count")();
}

}  // namespace tercet
