#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

using gpu::kFullMask;

__global__ void shuffle_kernel(const int* in, int* out) {
  const unsigned i = threadIdx.x, n = blockDim.x;
  const int x = in[i];
  out[0 * n + i] = __shfl_sync(kFullMask, x, 5);
  out[1 * n + i] = __shfl_xor_sync(kFullMask, x, 3);
  out[2 * n + i] = __shfl_up_sync(kFullMask, x, 2);
  out[3 * n + i] = __shfl_down_sync(kFullMask, x, 2);
  out[4 * n + i] = __shfl_sync(kFullMask, x, 1, 8);
  out[5 * n + i] = __shfl_xor_sync(kFullMask, x, 4, 8);
  out[6 * n + i] = __shfl_up_sync(kFullMask, x, 1, 8);
  out[7 * n + i] = __shfl_down_sync(kFullMask, x, 1, 8);
  out[8 * n + i] = __shfl_xor_sync(kFullMask, x, 16);
}

__global__ void vote_kernel(const int* in, int* out) {
  const unsigned i = threadIdx.x, n = blockDim.x;
  out[0 * n + i] = static_cast<int>(__ballot_sync(kFullMask, in[i] > 0));
  out[1 * n + i] = __any_sync(kFullMask, in[i] > 0) != 0;
  out[2 * n + i] = __all_sync(kFullMask, in[i] > 0) != 0;
  out[3 * n + i] = __reduce_add_sync(kFullMask, in[i]);
  out[4 * n + i] = __reduce_max_sync(kFullMask, in[i]);
}

__global__ void divergent_vote_kernel(const int* in, unsigned* out) {
  const unsigned i = threadIdx.x;
  if (i % 2 == 0)
    out[i] = __ballot_sync(0x55555555u, in[i] > 0);
  else
    out[i] = __ballot_sync(0xaaaaaaaau, in[i] > 0);
}

__global__ void atomic_kernel(int* out) {
  atomicAdd(&out[0], static_cast<int>(threadIdx.x) + 1);
  atomicMax(&out[1], static_cast<int>(threadIdx.x));
}

__global__ void block_sum_kernel(const float* in, float* out) {
  __shared__ float shared[33];
  const float sum = gpu::block_sum(in[blockIdx.x * blockDim.x + threadIdx.x], shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

void shuffles(Stream& stream, unsigned threads, const int* in, int* out) {
  gpu::launch(stream, "shuffle_kernel", {.threads = threads}, shuffle_kernel, in, out);
}

void votes(Stream& stream, unsigned threads, const int* in, int* out) {
  gpu::launch(stream, "vote_kernel", {.threads = threads}, vote_kernel, in, out);
}

void divergent_votes(Stream& stream, const int* in, unsigned* out) {
  gpu::launch(stream, "divergent_vote_kernel", {.threads = 32}, divergent_vote_kernel, in, out);
}

void atomics(Stream& stream, unsigned threads, int* out) {
  gpu::launch(stream, "atomic_kernel", {.threads = threads}, atomic_kernel, out);
}

void block_sums(Stream& stream, unsigned blocks, unsigned threads, const float* in, float* out) {
  gpu::launch(stream, "block_sum_kernel", {.grid_x = blocks, .threads = threads}, block_sum_kernel, in, out);
}

}  // namespace tercet::test
