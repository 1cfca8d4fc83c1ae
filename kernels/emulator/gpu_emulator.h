// g++'s side of kernels/gpu.h: the mirror of kernels/gpu_nvcc.h, with the same names and meanings. See
// kernels/emulator/README.md.
#pragma once

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "device/gpu_stream.h"
#include "kernels/emulator/cuda_types.h"
#include "kernels/emulator/execution.h"
#include "kernels/emulator/intrinsics.h"

namespace tercet::emu {

// Queues the kernel at an address, whose threads all call `body`. Throws Error(Fault::run) when no GPU could launch
// this shape.
void queue_kernel(Stream& stream, const char* name, const void* kernel, const LaunchShape& shape,
                  std::function<void()> body);

}  // namespace tercet::emu

namespace tercet::gpu {

using Bf16 = BFloat16;
using Half = Float16;

using tercet::to_float;
__forceinline__ float to_float(float x) { return x; }

template <class T>
__forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return to_bfloat16(x);
  else if constexpr (std::is_same_v<T, Half>)
    return to_float16(x);
  else
    return x;
}

// The address, which must be a multiple of 16: the compiler may split the access, and then nothing else would notice.
template <class T>
__forceinline__ T* aligned16(T* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) emu::fail_misaligned(16);
  return address;
}

// Two elements in one register, `low` in the lower half: an operand of mma.
template <class T>
__forceinline__ uint32_t pack_pair(float low, float high) {
  return from_float<T>(low).bits | uint32_t{from_float<T>(high).bits} << 16;
}

// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__forceinline__ T* shared_memory(TERCET_SITE) {
  return static_cast<T*>(emu::dynamic_shared_memory(site));
}

// 16 bytes from global to shared memory, asynchronously; 16 zero bytes when not `valid`.
__forceinline__ void copy_async16(void* shared, const void* global, bool valid, TERCET_SITE) {
  emu::copy_async16(shared, global, valid, site);
}
__forceinline__ void copy_async_commit() { emu::copy_async_commit(); }
template <int kPending>
__forceinline__ void copy_async_wait() {
  emu::copy_async_wait(kPending);
}

__forceinline__ void load_matrices(uint32_t (&registers)[4], const void* row, TERCET_SITE) {
  emu::load_matrices(registers, row, false, site);
}
__forceinline__ void load_matrices_trans(uint32_t (&registers)[4], const void* row, TERCET_SITE) {
  emu::load_matrices(registers, row, true, site);
}

template <class T>
__forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, TERCET_SITE) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, Half>);
  constexpr auto kElement = std::is_same_v<T, Bf16> ? emu::MatrixElement::bf16 : emu::MatrixElement::f16;
  emu::multiply_accumulate(c, a, b0, b1, kElement, site);
}

__forceinline__ float exp2_fast(float x) { return exp2f(x); }

// Queues kernel(arguments...) on the stream. `name` is for messages.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (shape.blocks() == 0) return;
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  emu::queue_kernel(stream, name, reinterpret_cast<const void*>(kernel), shape,
                    [kernel, values] { std::apply(kernel, values); });
}

}  // namespace tercet::gpu
