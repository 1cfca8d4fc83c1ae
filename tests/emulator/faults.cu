#include "fixtures.h"
#include "kernels/gpu.h"

namespace tercet::test {
namespace {

using gpu::kFullMask;

__global__ void lone_lane_kernel(int* out) {
  if (threadIdx.x == 40) __syncwarp();
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void different_barriers_kernel(int* out) {
  if (threadIdx.x < 32) {
    out[threadIdx.x] = 1;
    __syncthreads();
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}

__global__ void missing_lane_kernel(int* out) {
  if (threadIdx.x != 7) out[threadIdx.x] = __shfl_xor_sync(kFullMask, out[threadIdx.x], 1);
  __syncthreads();
}

__global__ void different_collectives_kernel(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __any_sync(kFullMask, 1);
  else
    out[threadIdx.x] = __all_sync(kFullMask, 1);
}

__global__ void wrong_mask_kernel(int* out) { out[threadIdx.x] = __any_sync(0xffffu, 1); }

__global__ void unwaited_kernel(const float* in) {
  __shared__ __align__(16) float shared[4];
  gpu::copy_async16(shared, in, true);
  gpu::copy_async_commit();
}

__global__ void misaligned_copy_kernel(const float* in) {
  __shared__ __align__(16) float shared[4];
  gpu::copy_async16(shared, in + 1, true);
  gpu::copy_async_commit();
  gpu::copy_async_wait<0>();
}

__global__ void misaligned_pack_kernel(const float* in, float* out) { gpu::store_pack(out, gpu::load_pack(in + 1)); }

__global__ void device_read_kernel(const int* in, int64_t index, int* out) {
  if (threadIdx.x == 3) out[0] = in[index];
}

__global__ void dynamic_read_kernel(int index, int* out) { out[0] = gpu::shared_memory<int>()[index]; }

__global__ void static_read_kernel(int index, int* out) {
  __shared__ int shared[10];
  const int* first = shared;
  out[0] = first[index];
}

__device__ __attribute__((noinline)) int recurse(int depth, int* out) {
  int frame[256];
  for (int i = 0; i < 256; ++i) frame[i] = out[0] + depth + i;
  out[1] = frame[depth % 256];
  return depth < 0 ? frame[0] : recurse(depth + 1, out) + frame[out[1] & 255];
}

__global__ void recursion_kernel(int* out) { out[0] = recurse(0, out); }

__global__ void throwing_kernel_body() { TERCET_REQUIRE(threadIdx.x != 2, "thread 2 is not welcome"); }

constexpr LaunchShape kOneWarp{.threads = 32};
constexpr LaunchShape kTwoWarps{.threads = 64};

}  // namespace

void lone_lane(Stream& stream, int* out) { gpu::launch(stream, "lone_lane_kernel", kTwoWarps, lone_lane_kernel, out); }
void different_barriers(Stream& stream, int* out) {
  gpu::launch(stream, "different_barriers_kernel", kTwoWarps, different_barriers_kernel, out);
}
void shuffle_missing_lane(Stream& stream, int* out) {
  gpu::launch(stream, "missing_lane_kernel", kOneWarp, missing_lane_kernel, out);
}
void different_collectives(Stream& stream, int* out) {
  gpu::launch(stream, "different_collectives_kernel", kOneWarp, different_collectives_kernel, out);
}
void lane_outside_its_mask(Stream& stream, int* out) {
  gpu::launch(stream, "wrong_mask_kernel", kOneWarp, wrong_mask_kernel, out);
}
void copy_never_waited_for(Stream& stream, const float* in) {
  gpu::launch(stream, "unwaited_kernel", {}, unwaited_kernel, in);
}
void misaligned_copy(Stream& stream, const float* in) {
  gpu::launch(stream, "misaligned_copy_kernel", {}, misaligned_copy_kernel, in);
}
void misaligned_pack(Stream& stream, const float* in, float* out) {
  gpu::launch(stream, "misaligned_pack_kernel", {}, misaligned_pack_kernel, in, out);
}
void device_read_past_end(Stream& stream, const int* in, int64_t index, int* out) {
  gpu::launch(stream, "device_read_kernel", {.grid_x = 2, .threads = 4}, device_read_kernel, in, index, out);
}
void dynamic_shared_past_end(Stream& stream, int index, int* out) {
  gpu::launch(stream, "dynamic_read_kernel", {.shared_bytes = 40}, dynamic_read_kernel, index, out);
}
void static_shared_past_end(Stream& stream, int index, int* out) {
  gpu::launch(stream, "static_read_kernel", {}, static_read_kernel, index, out);
}
void endless_recursion(Stream& stream, int* out) { gpu::launch(stream, "recursion_kernel", {}, recursion_kernel, out); }
void no_dynamic_shared(Stream& stream, int* out) {
  gpu::launch(stream, "dynamic_read_kernel", {}, dynamic_read_kernel, 0, out);
}
void throwing_kernel(Stream& stream) { gpu::launch(stream, "throwing_kernel", {.threads = 4}, throwing_kernel_body); }

}  // namespace tercet::test
