// What the .cu files of this folder are written against, the same under two compilers: nvcc makes the kernels of the
// `cuda` device, g++ those of the `emu` device, which runs them thread by thread (kernels/emulator/README.md). No other
// header is needed in a kernel, and no CUDA API is called outside csrc/device.
//
//   Kernels      __global__ void k(...), __shared__ arrays, shared_memory<T>() for the dynamic part, threadIdx,
//   blockIdx,
//                blockDim, gridDim, __syncthreads, __syncwarp, shuffles, votes, and the wrappers below.
//   Launchers    launch(stream, name, shape, kernel, arguments...); arguments are passed by value.
//   Elements     Bf16, Half and float, read with to_float, made with from_float<T> (round to nearest even).
//   16 bytes     Pack<T>: load_pack, store_pack on addresses that are multiples of 16.
//   Not there    floating-point atomics, device-side allocation, printf, device-wide barriers, constant memory.
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "base/error.h"
#include "device/gpu_stream.h"

#if defined(__CUDACC__)
#include "kernels/gpu_nvcc.h"
#else
#include "kernels/emulator/gpu_emulator.h"
#endif

namespace tercet::gpu {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

// The device's element of a DType, as gpu code reads it.
template <class T>
inline constexpr DType kDType = DType::f32;
template <>
inline constexpr DType kDType<Bf16> = DType::bf16;
template <>
inline constexpr DType kDType<Half> = DType::f16;

// 16 bytes of elements.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T element[kCount];
};

template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* address) {
  return *reinterpret_cast<const Pack<T>*>(aligned16(address));
}

template <class T>
__device__ __forceinline__ void store_pack(T* address, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(aligned16(address)) = pack;
}

// Sum, maximum over a warp, or over each kLanes neighbouring lanes of it; the same bits in every one of them.
template <int kLanes = kWarp, class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

template <int kLanes = kWarp>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
}

// The same over a block of blockDim.x threads, a multiple of 32, at most 1024; `shared` holds 33 floats. All threads
// call it; the result is the same in every thread. Two calls in a row may use the same memory.
template <class Combine>
__device__ __forceinline__ float block_reduce(float x, float identity, float* shared, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = combine(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = combine(lane < warps ? shared[lane] : identity);
    if (lane == 0) shared[32] = x;
  }
  __syncthreads();
  const float result = shared[32];
  __syncthreads();
  return result;
}

__device__ __forceinline__ float block_sum(float x, float* shared) {
  return block_reduce(x, 0.0f, shared, [](float y) { return warp_sum(y); });
}

__device__ __forceinline__ float block_max(float x, float* shared) {
  return block_reduce(x, -INFINITY, shared, [](float y) { return warp_max(y); });
}

// One Philox4x32-10 block: the device's side of RandomStream::block (base/rng.h).
struct RandomWords {
  uint32_t word[4];
};

__device__ __forceinline__ RandomWords random_words(uint64_t key, uint64_t sample, uint32_t position,
                                                    uint32_t lane_block) {
  uint32_t c0 = static_cast<uint32_t>(sample), c1 = static_cast<uint32_t>(sample >> 32), c2 = position, c3 = lane_block;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// --- Launchers ---

// Calls body.operator()<float>(), <Bf16>() or <Half>(); throws Error(Fault::run) for another dtype.
template <class Body>
void dispatch_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::bf16:
      return body.template operator()<Bf16>();
    case DType::f16:
      return body.template operator()<Half>();
    default:
      fail_run(fmt::format("a GPU kernel does not compute in {}", dtype_name(dtype)), "--dtype",
               "use fp32, bf16 or fp16");
  }
}

// The elements of a tensor, or nullptr when it is not given. T is an element type, double or an integer.
template <class T>
T* elements(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// Whether rows of the tensor can be read in packs of 16 bytes.
inline bool packs_align(const Tensor& tensor) {
  const size_t pitch_bytes = static_cast<size_t>(tensor.pitch) * dtype_size(tensor.dtype);
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && (tensor.rows() <= 1 || pitch_bytes % 16 == 0) &&
         static_cast<size_t>(tensor.columns()) * dtype_size(tensor.dtype) % 16 == 0;
}

// A matrix [rows, columns] of any pitch, or a contiguous vector [n], of the stream's device.
inline void require_matrix(Stream& stream, const Tensor& tensor, DType dtype, int64_t rows, int64_t columns,
                           const char* name) {
  require_shape(tensor, dtype, {rows, columns}, name);
  TERCET_REQUIRE(tensor.device == stream.device().kind(), "{} is not in the memory of {}", name,
                 device_name(stream.device().kind()));
  TERCET_REQUIRE(rows <= 1 || tensor.pitch >= columns, "the rows of {} overlap (pitch {})", name, tensor.pitch);
}

inline void require_vector(Stream& stream, const Tensor& tensor, DType dtype, int64_t n, const char* name) {
  require_shape(tensor, dtype, {n}, name);
  TERCET_REQUIRE(tensor.device == stream.device().kind(), "{} is not in the memory of {}", name,
                 device_name(stream.device().kind()));
  TERCET_REQUIRE(tensor.contiguous(), "{} is not contiguous (pitch {})", name, tensor.pitch);
}

// A grid dimension; throws Error(Fault::run) above the device's limit of 2^31 - 1 blocks.
inline unsigned grid_of(int64_t blocks) {
  TERCET_REQUIRE(blocks >= 0 && blocks <= INT32_MAX, "{} blocks exceed a grid", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace tercet::gpu
