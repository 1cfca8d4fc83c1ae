// What the kernels over rows of logits share: runs of a row of any alignment, and the sums of a softmax in one pass.
#pragma once

#include "kernels/gpu_rows.h"

namespace tercet::gpu {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

// Calls body(first, count) for runs of up to Pack<T>::kCount elements that cover a row, dealt to the threads of the
// block in turn: the elements before the first multiple of 16 bytes, whole packs, the rest.
template <class T, class Body>
__device__ __forceinline__ void for_runs(const T* row, int64_t n, Body body) {
  constexpr int kPack = Pack<T>::kCount;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t head = min(n, misaligned == 0 ? int64_t{0} : kPack - misaligned);
  if (threadIdx.x == 0 && head > 0) body(int64_t{0}, head);
  for (int64_t first = head + int64_t{threadIdx.x} * kPack; first < n; first += int64_t{blockDim.x} * kPack)
    body(first, n - first);
}

// Of the elements z = x inverse_temperature seen so far, with y = (x - max) inverse_temperature log2(e):
// max = the largest x, sum = sum 2^y, weighted = sum 2^y y. Elements of -infinity add nothing; a NaN makes `sum` NaN.
struct SoftmaxSums {
  float max = -INFINITY;
  float sum = 0;
  float weighted = 0;
  float scale;

  __device__ __forceinline__ explicit SoftmaxSums(float inverse_temperature) : scale(inverse_temperature * kLog2E) {}

  // Makes `larger` >= max the new maximum.
  __device__ __forceinline__ void rescale(float larger) {
    if (max == -INFINITY) {  // nothing was seen, or elements of no weight
      max = larger;
      return;
    }
    const float y = (max - larger) * scale;
    const float factor = exp2_fast(y);
    weighted = factor == 0 ? 0.0f : factor * (weighted + y * sum);
    sum *= factor;
    max = larger;
  }

  template <int kCount>
  __device__ __forceinline__ void add(const float (&x)[kCount]) {
    float largest = x[0];
#pragma unroll
    for (int j = 1; j < kCount; ++j) largest = fmaxf(largest, x[j]);
    if (largest > max) rescale(largest);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float y = x[j] == -INFINITY ? -INFINITY : (x[j] - max) * scale;
      const float e = exp2_fast(y);
      sum += e;
      weighted += e == 0 ? 0.0f : e * y;
    }
  }

  // Joins max and sum of all threads of the block; every thread gets the result, and keeps its own share of `weighted`
  // for the common max. `shared` holds 33 floats.
  __device__ __forceinline__ void join_block(float* shared) {
    rescale(block_max(max, shared));
    sum = block_sum(sum, shared);
  }
};

// A block per row.
inline LaunchShape vocabulary_shape(int64_t rows, int64_t columns) {
  return {.grid_x = grid_of(rows), .threads = columns > 8192 ? 512u : 128u};
}

}  // namespace tercet::gpu
