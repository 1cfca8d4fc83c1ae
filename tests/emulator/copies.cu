#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

constexpr int kTile = 32 * 4;  // floats

// Tile t + 1 is on its way while tile t is read, by another thread than the one that copied it.
template <int kPending, bool kBarrier>
__global__ void pipeline_kernel(int tiles, const float* in, float* out) {
  __shared__ __align__(16) float shared[2][kTile];
  const int thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int tile) {
    gpu::copy_async16(&shared[tile % 2][thread * 4], in + tile * kTile + thread * 4, tile < tiles);
    gpu::copy_async_commit();
  };
  if (tiles > 0) fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles)
      fetch(tile + 1);
    else
      gpu::copy_async_commit();
    gpu::copy_async_wait<kPending>();
    if (kBarrier) __syncthreads();
    const int other = 31 - thread;
    for (int i = 0; i < 4; ++i) out[tile * kTile + other * 4 + i] = shared[tile % 2][other * 4 + i];
    __syncthreads();
  }
  gpu::copy_async_wait<0>();
}

__global__ void zero_fill_kernel(int valid, const float* in, float* out) {
  __shared__ __align__(16) float shared[kTile];
  const int first = static_cast<int>(threadIdx.x) * 4;
  gpu::copy_async16(shared + first, first < valid ? in + first : in, first < valid);
  gpu::copy_async_commit();
  gpu::copy_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[first + i] = shared[first + i];
}

constexpr LaunchShape kOneWarp{.threads = 32};

}  // namespace

void pipelined_copy(Stream& stream, int tiles, const float* in, float* out) {
  gpu::launch(stream, "pipeline_kernel", kOneWarp, pipeline_kernel<1, true>, tiles, in, out);
}

void pipelined_copy_waits_too_little(Stream& stream, int tiles, const float* in, float* out) {
  gpu::launch(stream, "pipeline_kernel", kOneWarp, pipeline_kernel<2, true>, tiles, in, out);
}

void pipelined_copy_without_barrier(Stream& stream, int tiles, const float* in, float* out) {
  gpu::launch(stream, "pipeline_kernel", kOneWarp, pipeline_kernel<1, false>, tiles, in, out);
}

void zero_filled_copy(Stream& stream, int valid, const float* in, float* out) {
  gpu::launch(stream, "zero_fill_kernel", kOneWarp, zero_fill_kernel, valid, in, out);
}

}  // namespace tercet::test
