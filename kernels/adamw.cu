// AdamW, norms and moving averages on the GPU.
//
// Layout  flat segments [n].
// Floor   adamw 32 bytes per parameter with 16-bit weights beside an fp32 master (master, gradient, m and v 4 + 4
//         each) plus 2 for the weights; sum_of_squares 4 per element; moving_average 4 + 4 and what x has.
// Design  adamw: four parameters per thread, one load of 16 bytes per array, constants folded on the host in fp64; the
//         gradient's scale and the skip flag are read on the device, so that nobody waits for them.
//         sum_of_squares: a block per fixed part of the elements adds in fp64, a second kernel adds the blocks in
//         order.
#include <algorithm>
#include <cmath>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr int kAdamRun = 4;
constexpr int kAdamBlocks = 6;  // of a multiprocessor at once: up to 40 registers per thread
constexpr int kSquareThreads = 512;
constexpr int64_t kSquarePart = 32768;      // elements of a block, unless there would be too many blocks
constexpr int64_t kMaxSquareBlocks = 4096;  // partial sums

struct AdamWFactors {
  float beta1, rest1, beta2, rest2, epsilon;
  float keep, decay;    // 1 - lr weight_decay, lr weight_decay
  float step_size;      // lr / (1 - beta1^step)
  float second_moment;  // 1 / (1 - beta2^step)
};

AdamWFactors fold_factors(const AdamWArgs& args) {
  const double step = static_cast<double>(args.step);
  return {.beta1 = static_cast<float>(args.beta1),
          .rest1 = static_cast<float>(1 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .rest2 = static_cast<float>(1 - args.beta2),
          .epsilon = static_cast<float>(args.epsilon),
          .keep = static_cast<float>(1 - args.lr * args.weight_decay),
          .decay = static_cast<float>(args.lr * args.weight_decay),
          .step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, step))),
          .second_moment = static_cast<float>(1 / (1 - std::pow(args.beta2, step)))};
}

template <class T>
struct alignas(kAdamRun * sizeof(T)) AdamPack {
  T element[kAdamRun];
};

// Rounds four masters into weights of their own memory.
template <class T, bool kPacks>
__device__ __forceinline__ void store_weights(T* weights, int64_t count, const float (&master)[kAdamRun]) {
  if (kPacks && count >= kAdamRun) {
    AdamPack<T> pack;
#pragma unroll
    for (int j = 0; j < kAdamRun; ++j) pack.element[j] = from_float<T>(master[j]);
    *reinterpret_cast<AdamPack<T>*>(weights) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < kAdamRun; ++j)
    if (j < count) weights[j] = from_float<T>(master[j]);
}

// weights is nullptr when they are the master.
template <class T, bool kPacks>
__global__ void __launch_bounds__(kFlatThreads, kAdamBlocks)
    adamw_kernel(T* weights, float* master, float* gradient, float* m, float* v, const double* control, AdamWFactors f,
                 int64_t n) {
  const int64_t first = (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x) * kAdamRun;
  const int64_t count = n - first;
  if (count <= 0 || control[1] != 0) return;
  const auto gradient_scale = static_cast<float>(control[0]);
  float w[kAdamRun], g[kAdamRun], m1[kAdamRun], m2[kAdamRun];
  load_run<kPacks>(gradient + first, count, g);
  load_run<kPacks>(m + first, count, m1);
  load_run<kPacks>(v + first, count, m2);
  load_run<kPacks>(master + first, count, w);
#pragma unroll
  for (int j = 0; j < kAdamRun; ++j) {
    const float scaled = gradient_scale * g[j];
    m1[j] = f.beta1 * m1[j] + f.rest1 * scaled;
    m2[j] = f.beta2 * m2[j] + f.rest2 * scaled * scaled;
    const float step = f.step_size * m1[j] / (sqrtf(m2[j] * f.second_moment) + f.epsilon);
    g[j] = -f.decay * w[j] - step;
    w[j] = f.keep * w[j] - step;
  }
  store_run<kPacks>(gradient + first, count, g);
  store_run<kPacks>(m + first, count, m1);
  store_run<kPacks>(v + first, count, m2);
  store_run<kPacks>(master + first, count, w);
  if (weights != nullptr) store_weights<T, kPacks>(weights + first, count, w);
}

// partial[block] = sum of x^2 over the block's part, whose size is a multiple of kRun.
template <class T, bool kPacks>
__global__ void square_parts_kernel(const T* x, double* partial, int64_t n, int64_t part) {
  __shared__ double shared[kWarp];
  const int64_t begin = blockIdx.x * part;
  const int64_t end = min(n, begin + part);
  double sum[1] = {0};
  for (int64_t i = begin + int64_t{threadIdx.x} * kRun; i < end; i += kSquareThreads * kRun) {
    float values[kRun];
    load_run<kPacks>(x + i, end - i, values);
#pragma unroll
    for (int j = 0; j < kRun; ++j) sum[0] += static_cast<double>(values[j]) * static_cast<double>(values[j]);
  }
  block_sums(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

__global__ void add_parts_kernel(const double* partial, int64_t parts, double* total) {
  __shared__ double shared[kWarp];
  double sum[1] = {0};
  for (int64_t i = threadIdx.x; i < parts; i += kSquareThreads) sum[0] += partial[i];
  block_sums(sum, shared);
  if (threadIdx.x == 0) *total += sum[0];
}

// average += rate (x - average)
template <class T, bool kPacks>
__global__ void moving_average_kernel(float* average, const T* x, float rate, int64_t n) {
  const Run run = thread_run(1, n);
  if (run.count <= 0) return;
  float a[kRun], values[kRun];
  load_run<kPacks>(average + run.column, run.count, a);
  load_run<kPacks>(x + run.column, run.count, values);
#pragma unroll
  for (int j = 0; j < kRun; ++j) a[j] += rate * (values[j] - a[j]);
  store_run<kPacks>(average + run.column, run.count, a);
}

}  // namespace

void adamw(Stream& stream, const AdamWArgs& args) {
  require_rank(args.weights, 1, "weights");
  const int64_t n = args.weights.rows();
  TERCET_REQUIRE(is_floating(args.weights.dtype), "weights are {}", args.weights.describe());
  TERCET_REQUIRE(args.master.defined() || args.weights.dtype == DType::f32, "weights are {} without a master",
                 args.weights.describe());
  require_vector(stream, args.weights, args.weights.dtype, n, "weights");
  if (args.master.defined()) require_vector(stream, args.master, DType::f32, n, "master");
  require_vector(stream, args.gradient, DType::f32, n, "gradient");
  require_vector(stream, args.m, DType::f32, n, "m");
  require_vector(stream, args.v, DType::f32, n, "v");
  require_vector(stream, args.control, DType::f64, 2, "control");
  TERCET_REQUIRE(args.step >= 1, "step {}", args.step);
  const Tensor& master = args.master.defined() ? args.master : args.weights;
  const LaunchShape shape = {.grid_x = grid_of(ceil_div<int64_t>(n, kAdamRun * kFlatThreads)), .threads = kFlatThreads};
  dispatch_element(args.weights.dtype, [&]<class T>() {
    T* weights = args.master.defined() ? elements<T>(args.weights) : nullptr;
    dispatch_bool(runs_align({1, n}, {&args.weights, &master, &args.gradient, &args.m, &args.v}), [&]<bool kPacks>() {
      launch(stream, "adamw", shape, adamw_kernel<T, kPacks>, weights, elements<float>(master),
             elements<float>(args.gradient), elements<float>(args.m), elements<float>(args.v),
             elements<const double>(args.control), fold_factors(args), n);
    });
  });
}

void sum_of_squares(Stream& stream, const SumOfSquaresArgs& args) {
  require_rank(args.x, 1, "x");
  const int64_t n = args.x.rows();
  require_vector(stream, args.x, args.x.dtype, n, "x");
  require_vector(stream, args.sum, DType::f64, 1, "sum");
  const int64_t part = round_up(std::max(kSquarePart, ceil_div(n, kMaxSquareBlocks)), int64_t{kRun});
  const int64_t parts = ceil_div(n, part);
  dispatch_element(args.x.dtype, [&]<class T>() {
    if (n == 0) return;
    auto* partial =
        static_cast<double*>(static_cast<GpuStream&>(stream).workspace(sizeof(double) * static_cast<size_t>(parts)));
    dispatch_bool(runs_align({1, n}, {&args.x}), [&]<bool kPacks>() {
      launch(stream, "sum_of_squares", {.grid_x = grid_of(parts), .threads = kSquareThreads},
             square_parts_kernel<T, kPacks>, elements<const T>(args.x), partial, n, part);
    });
    launch(stream, "sum_of_squares total", {.threads = kSquareThreads}, add_parts_kernel, partial, parts,
           elements<double>(args.sum));
  });
}

void moving_average(Stream& stream, const MovingAverageArgs& args) {
  require_rank(args.average, 1, "average");
  const int64_t n = args.average.rows();
  require_vector(stream, args.average, DType::f32, n, "average");
  require_vector(stream, args.x, args.x.dtype, n, "x");
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_bool(runs_align({1, n}, {&args.average, &args.x}), [&]<bool kPacks>() {
      launch(stream, "moving_average", flat_shape(1, n), moving_average_kernel<T, kPacks>,
             elements<float>(args.average), elements<const T>(args.x), static_cast<float>(1 - args.decay), n);
    });
  });
}

}  // namespace tercet::gpu
