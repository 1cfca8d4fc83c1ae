// nvcc's side of kernels/gpu.h: the element types, the asynchronous copies and matrix instructions as inline PTX, and
// launch(). The one file of kernels/ that holds PTX.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "device/cuda_stream.h"

namespace tercet::gpu {

using Bf16 = __nv_bfloat16;
using Half = __half;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(Half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, Half>)
    return __float2half_rn(x);
  else
    return x;
}

// The address, a multiple of 16 (which the emulator checks).
template <class T>
__device__ __forceinline__ T* aligned16(T* address) {
  return address;
}

// Two elements in one register, `low` in the lower half: an operand of mma.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof(bits));
  return bits;
}

// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ __forceinline__ T* shared_memory() {
  extern __shared__ __align__(128) unsigned char tercet_dynamic_shared_memory[];
  return reinterpret_cast<T*>(tercet_dynamic_shared_memory);
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, asynchronously; 16 zero bytes when not `valid`. Both addresses are multiples
// of 16. The bytes have landed after the wait for their group, and a barrier shows them to other threads.
__device__ __forceinline__ void copy_async16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most `kPending` of the groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// ldmatrix.x4: four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. Register i
// of lane l holds elements (row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1) of matrix i, of its transpose in `_trans`.
__device__ __forceinline__ void load_matrices(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_trans(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8] in fp32 by one warp. With g = lane / 4, t = lane % 4: a[0] holds row g, columns 2t and
// 2t + 1; a[1] row g + 8; a[2], a[3] the same with columns + 8; b0 rows 2t, 2t + 1 of column g; b1 rows + 8; c[0], c[1]
// row g, columns 2t and 2t + 1; c[2], c[3] row g + 8. PTX ISA, "mma.m16n8k16".
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Base-2 exponential, two ulp or so; exp2_fast(-infinity) = 0. One instruction: results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Queues kernel(arguments...) on the stream. `name` is for messages and profiles.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (shape.blocks() == 0) return;
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  std::apply(
      [&](Parameters&... value) {
        void* addresses[] = {static_cast<void*>(&value)...};
        static_cast<CudaStream&>(stream).launch_kernel(name, reinterpret_cast<const void*>(kernel), shape, addresses);
      },
      values);
}

}  // namespace tercet::gpu
