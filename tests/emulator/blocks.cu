#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

__global__ void early_exit_kernel(int alive, const int* in, int* out) {
  __shared__ int shared[1024];
  const int i = static_cast<int>(threadIdx.x);
  if (i >= alive) return;
  shared[i] = in[i];
  __syncthreads();
  out[i] = shared[alive - 1 - i];
}

__global__ void fresh_memory_kernel(uint32_t* out) {
  __shared__ uint32_t here[4];
  auto* there = gpu::shared_memory<uint32_t>();
  out[2 * blockIdx.x] = here[3];
  out[2 * blockIdx.x + 1] = there[3];
  here[3] = 1;
  there[3] = 1;
}

__global__ void block_order_kernel(int* counter, int* order) {
  order[atomicAdd(counter, 1)] = static_cast<int>(blockIdx.x);
}

__global__ void thread_order_kernel(int* counter, int* order) {
  __syncthreads();
  order[atomicAdd(counter, 1)] = static_cast<int>(threadIdx.x);
}

__global__ void empty_kernel() {}

__global__ void barrier_kernel(int rounds) {
  for (int i = 0; i < rounds; ++i) __syncthreads();
}

__global__ void shuffle_rounds_kernel(int rounds, int* out) {
  int x = static_cast<int>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = __shfl_xor_sync(gpu::kFullMask, x, 1);
  if (blockIdx.x == 0) out[threadIdx.x] = x;
}

__global__ void add_one_kernel(int64_t n, int* x) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}

__global__ void twice_kernel(int64_t n, int* x) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) x[i] += x[i];
}

__global__ void pitch_kernel(int pitch) {
  auto* shared = gpu::shared_memory<uint16_t>();
  uint32_t registers[4];
  gpu::load_matrices(registers, shared + static_cast<int>(threadIdx.x) * pitch);
}

LaunchShape flat(int64_t n) { return {.grid_x = gpu::grid_of(ceil_div<int64_t>(n, 128)), .threads = 128}; }

}  // namespace

void early_exit(Stream& stream, unsigned threads, int alive, const int* in, int* out) {
  gpu::launch(stream, "early_exit_kernel", {.threads = threads}, early_exit_kernel, alive, in, out);
}

void fresh_shared_memory(Stream& stream, uint32_t* out) {
  gpu::launch(stream, "fresh_memory_kernel", {.grid_x = 2, .shared_bytes = 64}, fresh_memory_kernel, out);
}

void block_order(Stream& stream, unsigned blocks, int* counter, int* order) {
  gpu::launch(stream, "block_order_kernel", {.grid_x = blocks}, block_order_kernel, counter, order);
}

void thread_order(Stream& stream, unsigned threads, int* counter, int* order) {
  gpu::launch(stream, "thread_order_kernel", {.threads = threads}, thread_order_kernel, counter, order);
}

void empty(Stream& stream, unsigned blocks, unsigned threads, size_t shared_bytes) {
  gpu::launch(stream, "empty_kernel", {.grid_x = blocks, .threads = threads, .shared_bytes = shared_bytes},
              empty_kernel);
}

void barriers(Stream& stream, unsigned blocks, unsigned threads, int rounds) {
  gpu::launch(stream, "barrier_kernel", {.grid_x = blocks, .threads = threads}, barrier_kernel, rounds);
}

void shuffle_rounds(Stream& stream, unsigned blocks, unsigned threads, int rounds, int* out) {
  gpu::launch(stream, "shuffle_rounds_kernel", {.grid_x = blocks, .threads = threads}, shuffle_rounds_kernel, rounds,
              out);
}

void add_one(Stream& stream, int64_t n, int* x) {
  gpu::launch(stream, "add_one_kernel", flat(n), add_one_kernel, n, x);
}

void twice(Stream& stream, int64_t n, int* x) { gpu::launch(stream, "twice_kernel", flat(n), twice_kernel, n, x); }

void load_with_pitch(Stream& stream, int pitch) {
  const auto bytes = static_cast<size_t>(pitch) * 32 * sizeof(uint16_t);
  gpu::launch(stream, "pitch_kernel", {.threads = 32, .shared_bytes = bytes}, pitch_kernel, pitch);
}

}  // namespace tercet::test
