#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

using gpu::Bf16;
using gpu::Half;

__global__ void load_kernel(const uint16_t* matrices, uint32_t* registers, uint32_t* transposed) {
  __shared__ __align__(16) uint16_t shared[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 4 * 64; i += gpu::kWarp) shared[i] = matrices[i];
  __syncthreads();
  const uint16_t* row = shared + lane * 8;
  uint32_t loaded[4];
  gpu::load_matrices(loaded, row);
  for (int i = 0; i < 4; ++i) registers[lane * 4 + i] = loaded[i];
  gpu::load_matrices_trans(loaded, row);
  for (int i = 0; i < 4; ++i) transposed[lane * 4 + i] = loaded[i];
}

__device__ __forceinline__ uint32_t pair_of(uint16_t low, uint16_t high) {
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}

template <class T>
__global__ void multiply_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  const int group = static_cast<int>(threadIdx.x) / 4, pair = static_cast<int>(threadIdx.x) % 4 * 2;
  uint32_t a_registers[4];
  for (int i = 0; i < 4; ++i) {
    const uint16_t* at = a + (group + i % 2 * 8) * 16 + pair + i / 2 * 8;
    a_registers[i] = pair_of(at[0], at[1]);
  }
  const uint32_t b0 = pair_of(b[pair * 8 + group], b[(pair + 1) * 8 + group]);
  const uint32_t b1 = pair_of(b[(pair + 8) * 8 + group], b[(pair + 9) * 8 + group]);
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(group + i / 2 * 8) * 8 + pair + i % 2];
  gpu::mma_16x8x16<T>(sums, a_registers, b0, b1);
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + pair + i % 2] = sums[i];
}

__global__ void pack_kernel(const float* in, uint32_t* bf16, uint32_t* fp16) {
  const unsigned i = threadIdx.x;
  bf16[i] = gpu::pack_pair<Bf16>(in[2 * i], in[2 * i + 1]);
  fp16[i] = gpu::pack_pair<Half>(in[2 * i], in[2 * i + 1]);
}

constexpr LaunchShape kOneWarp{.threads = 32};

}  // namespace

void load_matrix_registers(Stream& stream, const uint16_t* matrices, uint32_t* registers, uint32_t* transposed) {
  gpu::launch(stream, "load_kernel", kOneWarp, load_kernel, matrices, registers, transposed);
}

void multiply_bf16(Stream& stream, const uint16_t* a, const uint16_t* b, float* c) {
  gpu::launch(stream, "multiply_kernel", kOneWarp, multiply_kernel<Bf16>, a, b, c);
}

void multiply_fp16(Stream& stream, const uint16_t* a, const uint16_t* b, float* c) {
  gpu::launch(stream, "multiply_kernel", kOneWarp, multiply_kernel<Half>, a, b, c);
}

void pack_pairs(Stream& stream, const float* in, uint32_t* bf16, uint32_t* fp16) {
  gpu::launch(stream, "pack_kernel", kOneWarp, pack_kernel, in, bf16, fp16);
}

}  // namespace tercet::test
