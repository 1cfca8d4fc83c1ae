// What the row-wise .cu files share: views of rows, runs of elements in registers, fp64 sums, flat work on views of any
// pitch, and checks of launchers.
#pragma once

#include <initializer_list>

#include "kernels/gpu.h"

namespace tercet::gpu {

// The rows of a view of rank 1 (elements) or more; nullptr data for a tensor that is not given.
template <class T>
struct Rows {
  T* data;
  int64_t pitch;

  __device__ __forceinline__ T* operator[](int64_t row) const { return data + row * pitch; }
};

template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.pitch};
}

// Elements that a thread of a flat kernel holds in registers: one pack of 16 bits, two of fp32.
inline constexpr int kRun = 8;
inline constexpr int kFlatThreads = 256;

// x[i] = from[i] for i < count, `missing` beyond. With kPacks a whole run starts at a multiple of 16 bytes.
template <bool kPacks, class T, int kCount, class Count>
__device__ __forceinline__ void load_run(const T* from, Count count, float (&x)[kCount], float missing = 0.0f) {
  constexpr int kPack = Pack<T>::kCount;
  if (kPacks && count >= kCount) {
#pragma unroll
    for (int first = 0; first < kCount; first += kPack) {
      const Pack<T> pack = load_pack(from + first);
#pragma unroll
      for (int j = 0; j < kPack; ++j) x[first + j] = to_float(pack.element[j]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = j < count ? to_float(from[j]) : missing;
}

// to[i] = x[i] for i < count.
template <bool kPacks, class T, int kCount, class Count>
__device__ __forceinline__ void store_run(T* to, Count count, const float (&x)[kCount]) {
  constexpr int kPack = Pack<T>::kCount;
  if (kPacks && count >= kCount) {
#pragma unroll
    for (int first = 0; first < kCount; first += kPack) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kPack; ++j) pack.element[j] = from_float<T>(x[first + j]);
      store_pack(to + first, pack);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (j < count) to[j] = from_float<T>(x[j]);
}

// One element, or packs at a multiple of 16 bytes, that lie in a row as a whole or not at all.
template <class T, int kCount>
__device__ __forceinline__ void load_whole(const T* from, bool valid, float (&x)[kCount], float missing = 0.0f) {
  if constexpr (kCount == 1)
    x[0] = valid ? to_float(*from) : missing;
  else
    load_run<true>(from, valid ? kCount : 0, x, missing);
}

template <class T, int kCount>
__device__ __forceinline__ void store_whole(T* to, bool valid, const float (&x)[kCount]) {
  if (!valid) return;
  if constexpr (kCount == 1)
    *to = from_float<T>(x[0]);
  else
    store_run<true>(to, kCount, x);
}

// The elements [column, column + min(count, kRun)) of a row that one thread of a flat kernel works on; count <= 0 for a
// thread too many.
struct Run {
  int64_t row, column, count;
};

// Threads take the runs of a row, then the next row.
__device__ __forceinline__ Run thread_run(int64_t rows, int64_t columns) {
  const int64_t index = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int64_t runs = (columns + kRun - 1) / kRun;
  const int64_t row = index < runs ? 0 : index / runs;
  const int64_t column = (index - row * runs) * kRun;
  return {row, column, row < rows ? columns - column : 0};
}

inline LaunchShape flat_shape(int64_t rows, int64_t columns) {
  const int64_t runs = rows * ceil_div<int64_t>(columns, kRun);
  return {.grid_x = grid_of(ceil_div<int64_t>(runs, kFlatThreads)), .threads = kFlatThreads};
}

// Adds up x[i] over the block in an order fixed by its size; thread 0 gets the sums. `shared` holds 32 kSums doubles.
template <int kSums>
__device__ __forceinline__ void block_sums(double (&x)[kSums], double* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    x[i] = warp_sum(x[i]);
    if (lane == 0) shared[i * kWarp + warp] = x[i];
  }
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) x[i] = warp_sum(lane < warps ? shared[i * kWarp + lane] : 0.0);
}

// --- Launchers ---

// Calls body.operator()<true>() or <false>().
template <class Body>
void dispatch_bool(bool value, Body&& body) {
  if (value)
    body.template operator()<true>();
  else
    body.template operator()<false>();
}

// Whether every row of these views starts at a multiple of 16 bytes. Views that are not given do.
inline bool rows_align(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    const size_t pitch_bytes = static_cast<size_t>(tensor->pitch) * dtype_size(tensor->dtype);
    if (reinterpret_cast<uintptr_t>(tensor->data) % 16 != 0) return false;
    if (tensor->rows() > 1 && pitch_bytes % 16 != 0) return false;
  }
  return true;
}

// Whether packs of 16 bytes can be read from the start of each of these vectors, which may be missing.
inline bool starts_align(std::initializer_list<const Tensor*> vectors) {
  for (const Tensor* vector : vectors)
    if (reinterpret_cast<uintptr_t>(vector->data) % 16 != 0) return false;
  return true;
}

// Rows and columns of flat work on views of one shape: one row when all of them are contiguous.
struct Extent {
  int64_t rows, columns;
};

inline Extent flat_extent(std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  for (const Tensor* tensor : tensors)
    if (!tensor->contiguous()) return {first.rows(), first.columns()};
  return {1, first.elements()};
}

// Whether the runs of flat work start at multiples of 16 bytes.
inline bool runs_align(const Extent& extent, std::initializer_list<const Tensor*> tensors) {
  return extent.rows > 1 ? rows_align(tensors) : starts_align(tensors);
}

inline void require_rank(const Tensor& tensor, int rank, const char* name) {
  TERCET_REQUIRE(tensor.rank == rank, "{} is {}, expected {} dimension(s)", name, tensor.describe(), rank);
}

// A view of any shape, in memory of the stream's device.
inline void require_view(Stream& stream, const Tensor& tensor, const char* name) {
  TERCET_REQUIRE(tensor.defined(), "{} is not given", name);
  TERCET_REQUIRE(tensor.device == stream.device().kind(), "{} is not in the memory of {}", name,
                 device_name(stream.device().kind()));
  TERCET_REQUIRE(tensor.rows() <= 1 || tensor.pitch >= tensor.columns(), "the rows of {} overlap", name);
}

// The gradient of a parameter is fp32, or has the dtype of the elements.
inline DType gradient_dtype(const Tensor& gradient, DType dtype) {
  return gradient.dtype == DType::f32 ? DType::f32 : dtype;
}

// offsets [count + 1] int32; their values are not looked at.
inline void require_offsets(Stream& stream, const Tensor& offsets, int64_t count) {
  require_rank(offsets, 1, "offsets");
  TERCET_REQUIRE(offsets.shape[0] >= 1, "offsets is empty");
  require_vector(stream, offsets, DType::i32, count + 1, "offsets");
}

}  // namespace tercet::gpu
