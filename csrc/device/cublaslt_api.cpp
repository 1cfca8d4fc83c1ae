#include "device/cublaslt_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace tercet::lt {
namespace {

constexpr const char* kRemedy =
    "install cuBLAS of CUDA 12 or 13 (libcublas), or name libcublasLt.so in TERCET_CUBLASLT_LIBRARY";

void* open_first(const std::vector<std::string>& candidates) {
  std::string messages;
  for (const std::string& candidate : candidates) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
    messages += (messages.empty() ? "" : "; ") + std::string(dlerror());
  }
  fail_input(fmt::format("cuBLASLt cannot be loaded: {}", messages), "--device", kRemedy);
}

std::vector<std::string> candidates_of(const std::string& path) {
  if (!path.empty()) return {path};
  if (const char* given = std::getenv("TERCET_CUBLASLT_LIBRARY"); given != nullptr) return {given};
  return {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"};
}

template <class Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail_input(fmt::format("cuBLASLt has no {}", name), "--device", kRemedy);
}

Functions load(const std::string& path) {
  void* library = open_first(candidates_of(path));
  Functions f;
  bind(library, "cublasLtCreate", f.create);
  bind(library, "cublasLtDestroy", f.destroy);
  bind(library, "cublasLtGetVersion", f.version);
  bind(library, "cublasLtGetStatusString", f.status_text);
  bind(library, "cublasLtMatmulDescCreate", f.descriptor_create);
  bind(library, "cublasLtMatmulDescDestroy", f.descriptor_destroy);
  bind(library, "cublasLtMatmulDescSetAttribute", f.descriptor_set);
  bind(library, "cublasLtMatrixLayoutCreate", f.layout_create);
  bind(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy);
  bind(library, "cublasLtMatmulPreferenceCreate", f.preference_create);
  bind(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy);
  bind(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set);
  bind(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic);
  bind(library, "cublasLtMatmulAlgoCheck", f.check);
  bind(library, "cublasLtMatmul", f.matmul);
  return f;
}

}  // namespace

const Functions& open_library(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, Functions> opened;
  const std::lock_guard lock(mutex);
  const auto known = opened.find(path);
  return known != opened.end() ? known->second : opened.emplace(path, load(path)).first->second;
}

}  // namespace tercet::lt
