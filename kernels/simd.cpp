#include "kernels/simd.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace tercet {
namespace {

const SimdOps* find(std::string_view isa) {
  if (isa == "baseline") return &kSimdBaseline;
#if defined(__x86_64__)
  if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kSimdAvx2;
  if (isa == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return &kSimdAvx512;
#endif
  return nullptr;
}

const SimdOps* choose() {
  if (const char* isa = std::getenv("TERCET_ISA")) {
    const SimdOps* ops = find(isa);
    if (ops == nullptr)
      fail_input("this machine does not run that instruction set", std::string("TERCET_ISA=") + isa,
                 "use baseline, avx2 or avx512, or unset it");
    return ops;
  }
  for (const char* isa : {"avx512", "avx2"})
    if (const SimdOps* ops = find(isa)) return ops;
  return &kSimdBaseline;
}

std::atomic<const SimdOps*> selected = nullptr;

}  // namespace

const SimdOps& simd_ops() {
  const SimdOps* ops = selected.load(std::memory_order_relaxed);
  if (ops == nullptr) {
    ops = choose();
    selected.store(ops, std::memory_order_relaxed);
  }
  return *ops;
}

bool select_simd_ops(const char* isa) {
  const SimdOps* ops = find(isa);
  if (ops == nullptr) return false;
  selected.store(ops, std::memory_order_relaxed);
  return true;
}

}  // namespace tercet
