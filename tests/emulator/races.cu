#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

using gpu::kFullMask;

template <bool kBarrier>
__global__ void neighbour_kernel(int* out) {
  __shared__ int shared[1024];
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  if (kBarrier) __syncthreads();
  out[i] = shared[(i + 1) % blockDim.x];
}

__global__ void warp_barrier_kernel(int* out) {
  __shared__ int shared[32];
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  __syncwarp();
  const int next = shared[(i + 1) % 32];
  __syncwarp();
  shared[i] = next;
  __syncwarp();
  out[i] = shared[(i + 1) % 32];
}

__global__ void warp_shuffle_kernel(int* out) {
  __shared__ int shared[32];
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  const int zero = __shfl_xor_sync(kFullMask, 0, 1);
  out[i] = shared[(i + 1) % 32] + zero;
}

// Lanes 0-15 and 16-31 meet among themselves, then read each other's values.
__global__ void halves_kernel(int* out) {
  __shared__ int shared[32];
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  __syncwarp(i < 16 ? 0x0000ffffu : 0xffff0000u);
  out[i] = shared[(i + 16) % 32];
}

__global__ void reuse_kernel(int* out) {
  __shared__ int shared[64];
  const unsigned i = threadIdx.x;
  int sum = 0;
  for (int round = 0; round < 2; ++round) {
    shared[i] = static_cast<int>(i) + round;
    __syncthreads();
    sum += shared[63 - i];
  }
  out[i] = sum;
}

__global__ void one_address_kernel(int* out) {
  if (threadIdx.x == 0) out[0] = 7;
}

__global__ void own_address_kernel(int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

__global__ void atomic_and_plain_kernel(int* out) {
  if (blockIdx.x == 0)
    atomicAdd(out, 1);
  else
    out[1] = out[0];
}

__global__ void atomic_blocks_kernel(int* out) { atomicAdd(out, 1); }

__global__ void dynamic_kernel(int* out) {
  int* shared = gpu::shared_memory<int>();
  shared[threadIdx.x] = 1;
  out[threadIdx.x] = shared[63 - threadIdx.x];
}

}  // namespace

void neighbour_without_barrier(Stream& stream, unsigned threads, int* out) {
  gpu::launch(stream, "neighbour_kernel", {.threads = threads}, neighbour_kernel<false>, out);
}
void neighbour_with_barrier(Stream& stream, unsigned threads, int* out) {
  gpu::launch(stream, "neighbour_kernel", {.threads = threads}, neighbour_kernel<true>, out);
}
void neighbour_in_warp(Stream& stream, int* out) {
  gpu::launch(stream, "warp_barrier_kernel", {.threads = 32}, warp_barrier_kernel, out);
}
void neighbour_in_warp_by_shuffle(Stream& stream, int* out) {
  gpu::launch(stream, "warp_shuffle_kernel", {.threads = 32}, warp_shuffle_kernel, out);
}
void halves_of_warp(Stream& stream, int* out) {
  gpu::launch(stream, "halves_kernel", {.threads = 32}, halves_kernel, out);
}
void reuse_without_barrier(Stream& stream, int* out) {
  gpu::launch(stream, "reuse_kernel", {.threads = 64}, reuse_kernel, out);
}
void two_blocks_one_address(Stream& stream, int* out) {
  gpu::launch(stream, "one_address_kernel", {.grid_x = 2, .threads = 4}, one_address_kernel, out);
}
void blocks_with_own_addresses(Stream& stream, int* out) {
  gpu::launch(stream, "own_address_kernel", {.grid_x = 3, .threads = 4}, own_address_kernel, out);
}
void atomic_and_plain(Stream& stream, int* out) {
  gpu::launch(stream, "atomic_and_plain_kernel", {.grid_x = 2}, atomic_and_plain_kernel, out);
}
void atomics_of_blocks(Stream& stream, int* out) {
  gpu::launch(stream, "atomic_blocks_kernel", {.grid_x = 4, .threads = 8}, atomic_blocks_kernel, out);
}
void dynamic_without_barrier(Stream& stream, int* out) {
  gpu::launch(stream, "dynamic_kernel", {.threads = 64, .shared_bytes = 256}, dynamic_kernel, out);
}

}  // namespace tercet::test
