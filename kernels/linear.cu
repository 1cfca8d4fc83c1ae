// Linear layer on the GPU: the products go to the stream's product() (cuBLASLt, on `emu` the system's BLAS), bias and
// activation to its epilogue where it has one, and to the kernels here where it has not.
//
// Layout    x [T, K], weight [M, K], out [T, M], any pitch; the kernels give a thread one run of a row.
// Floor     forward 2 T K M FLOP, and 2 (T K + M K + T M) bytes in bf16; backward twice the FLOP. The exact GELU
//           reads and writes 2 + 2 bytes per element of out; the gradient of the activation with the bias's 2 (d_out) +
//           2 (out) + 2 (d_out), and 2 for the bias alone.
// Forward   bias and ReLU ride in the product. cuBLASLt's GELU is the tanh form, so the exact one is a pass of its own.
// Backward  one pass takes d_out through the activation in place and adds up its columns: a block owns a tile of
//           columns and a fixed part of the rows, whose sums it writes; a second kernel adds the parts in order. Then
//           two products, d_weight's sums kept in fp32.
//           cuBLASLt's epilogues for this (RELU_AUX, DRELU_BGRAD, BGRADB) are not used. The mask is out > 0, and out is
//           kept anyway. The gradient of a bias comes in the type of the product's result and replaces what was there,
//           where fp32 sums over micro-batches are wanted. And there are reports against them: BGRADA/B made a backward
//           pass 63 % slower on A100 (NVIDIA/CUDALibrarySamples #90), and bf16 epilogues were a kernel of their own on
//           Ampere and Ada (karpathy/llm.c #338, #591). Which is faster has not been measured yet.
#include <algorithm>
#include <cmath>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr int kColumnWarps = 8;     // rows that a block of the backward pass works on at a time
constexpr int64_t kPartRows = 128;  // of a part, at least
constexpr int64_t kMaxParts = 256;  // of the rows
constexpr float kSqrtHalf = 0.70710678f;
constexpr float kInvSqrt2Pi = 0.39894228f;

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f * (1.0f + erff(x * kSqrtHalf)); }

__device__ __forceinline__ float gelu(float x) { return x * normal_cdf(x); }

__device__ __forceinline__ float gelu_derivative(float x) {
  return normal_cdf(x) + x * expf(-0.5f * x * x) * kInvSqrt2Pi;
}

// out = gelu(pre), which may be the same memory.
template <class T, bool kPacks>
__global__ void gelu_forward(Rows<const T> pre, Rows<T> out, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun];
  load_run<kPacks>(pre[run.row] + run.column, run.count, x);
#pragma unroll
  for (int j = 0; j < kRun; ++j) x[j] = gelu(x[j]);
  store_run<kPacks>(out[run.row] + run.column, run.count, x);
}

// out += bias
template <class T, bool kPacks>
__global__ void add_bias(Rows<T> out, const T* bias, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun], b[kRun];
  load_run<kPacks>(out[run.row] + run.column, run.count, x);
  load_run<kPacks>(bias + run.column, run.count, b);
#pragma unroll
  for (int j = 0; j < kRun; ++j) x[j] += b[j];
  store_run<kPacks>(out[run.row] + run.column, run.count, x);
}

// d *= activation'(saved), saved being out (relu) or pre (gelu).
template <Activation kActivation, int kCount>
__device__ __forceinline__ void through_activation(float (&d)[kCount], const float (&saved)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if constexpr (kActivation == Activation::relu)
      d[j] = saved[j] > 0.0f ? d[j] : 0.0f;
    else
      d[j] *= gelu_derivative(saved[j]);
}

// Block (x, y) owns 32 kCount columns and rows [y part, (y + 1) part). sums [parts, M] may be null.
template <class T, Activation kActivation, int kCount>
__global__ void activation_backward(Rows<T> d_out, Rows<const T> saved, float* sums, int64_t rows, int64_t columns,
                                    int64_t part) {
  __shared__ float shared[kColumnWarps][kWarp * kCount];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = (int64_t{blockIdx.x} * kWarp + lane) * kCount;
  const bool valid = column < columns;
  const int64_t end = min(rows, (int64_t{blockIdx.y} + 1) * part);
  float total[kCount] = {};
  for (int64_t row = int64_t{blockIdx.y} * part + warp; row < end; row += kColumnWarps) {
    float d[kCount];
    load_whole(d_out[row] + column, valid, d);
    if constexpr (kActivation != Activation::none) {
      float s[kCount];
      load_whole(saved[row] + column, valid, s);
      through_activation<kActivation>(d, s);
      store_whole(d_out[row] + column, valid, d);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) total[j] += to_float(from_float<T>(d[j]));
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int j = 0; j < kCount; ++j) shared[warp][lane * kCount + j] = total[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * kCount; i += kColumnWarps * kWarp) {
    const int64_t target = int64_t{blockIdx.x} * kWarp * kCount + i;
    if (target >= columns) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kColumnWarps; ++w) sum += shared[w][i];
    sums[int64_t{blockIdx.y} * columns + target] = sum;
  }
}

// d_bias += sums over the parts, in order.
template <class G>
__global__ void add_parts(const float* sums, G* d_bias, int64_t columns, int64_t parts) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float total = 0;
  for (int64_t part = 0; part < parts; ++part) total += sums[part * columns + column];
  d_bias[column] = from_float<G>(to_float(d_bias[column]) + total);
}

void queue_gelu(Stream& stream, const Tensor& pre, const Tensor& out) {
  const Extent extent = flat_extent({&pre, &out});
  dispatch_element(out.dtype, [&]<class T>() {
    dispatch_bool(runs_align(extent, {&pre, &out}), [&]<bool kPacks>() {
      launch(stream, "gelu_forward", flat_shape(extent.rows, extent.columns), gelu_forward<T, kPacks>,
             rows_of<const T>(pre), rows_of<T>(out), extent.rows, extent.columns);
    });
  });
}

void queue_bias(Stream& stream, const Tensor& out, const Tensor& bias) {
  dispatch_element(out.dtype, [&]<class T>() {
    dispatch_bool(rows_align({&out}) && starts_align({&bias}), [&]<bool kPacks>() {
      launch(stream, "add_bias", flat_shape(out.rows(), out.columns()), add_bias<T, kPacks>, rows_of<T>(out),
             elements<const T>(bias), out.rows(), out.columns());
    });
  });
}

template <class T, Activation kActivation, int kCount>
void queue_activation_backward(Stream& stream, const LinearBackwardArgs& args) {
  const int64_t rows = args.d_out.rows();
  const int64_t columns = args.d_out.columns();
  const int64_t part = std::max(kPartRows, ceil_div(rows, kMaxParts));
  const int64_t parts = ceil_div(rows, part);
  float* sums = nullptr;
  if (args.d_bias.defined())
    sums = static_cast<float*>(
        static_cast<GpuStream&>(stream).workspace(sizeof(float) * static_cast<size_t>(parts * columns)));
  const Tensor& saved = kActivation == Activation::gelu ? args.pre_activation : args.out;
  launch(stream, "activation_backward",
         {.grid_x = grid_of(ceil_div<int64_t>(columns, kWarp * kCount)),
          .grid_y = grid_of(parts),
          .threads = kColumnWarps * kWarp},
         activation_backward<T, kActivation, kCount>, rows_of<T>(args.d_out), rows_of<const T>(saved), sums, rows,
         columns, part);
  if (sums == nullptr) return;
  const LaunchShape shape{.grid_x = grid_of(ceil_div<int64_t>(columns, kFlatThreads)), .threads = kFlatThreads};
  if (args.d_bias.dtype == DType::f32)
    launch(stream, "add_parts", shape, add_parts<float>, sums, elements<float>(args.d_bias), columns, parts);
  else
    launch(stream, "add_parts", shape, add_parts<T>, sums, elements<T>(args.d_bias), columns, parts);
}

template <class T, Activation kActivation>
void activation_and_bias(Stream& stream, const LinearBackwardArgs& args) {
  const Tensor& saved = kActivation == Activation::gelu ? args.pre_activation : args.out;
  const bool packs = packs_align(args.d_out) && (kActivation == Activation::none || packs_align(saved));
  if (packs)
    queue_activation_backward<T, kActivation, Pack<T>::kCount>(stream, args);
  else
    queue_activation_backward<T, kActivation, 1>(stream, args);
}

void queue_elementwise_backward(Stream& stream, const LinearBackwardArgs& args) {
  if (args.d_out.elements() == 0 || (args.activation == Activation::none && !args.d_bias.defined())) return;
  dispatch_element(args.d_out.dtype, [&]<class T>() {
    switch (args.activation) {
      case Activation::none:
        return activation_and_bias<T, Activation::none>(stream, args);
      case Activation::relu:
        return activation_and_bias<T, Activation::relu>(stream, args);
      case Activation::gelu:
        return activation_and_bias<T, Activation::gelu>(stream, args);
    }
  });
}

// The gradient of a parameter: fp32, or the dtype of the elements.
void require_gradient(Stream& stream, const Tensor& gradient, DType dtype, int64_t rows, int64_t columns) {
  require_matrix(stream, gradient, gradient_dtype(gradient, dtype), rows, columns, "d_weight");
}

}  // namespace

void linear_forward(Stream& stream, const LinearForwardArgs& args) {
  require_rank(args.x, 2, "x");
  require_rank(args.weight, 2, "weight");
  const DType dtype = args.x.dtype;
  const int64_t rows = args.x.rows();
  const int64_t columns = args.weight.rows();
  require_matrix(stream, args.x, dtype, rows, args.x.columns(), "x");
  require_matrix(stream, args.weight, dtype, columns, args.x.columns(), "weight");
  const bool product_only = !args.bias.defined() && args.activation == Activation::none;
  require_matrix(stream, args.out, product_only ? gradient_dtype(args.out, dtype) : dtype, rows, columns, "out");
  if (args.bias.defined()) require_vector(stream, args.bias, dtype, columns, "bias");
  if (args.pre_activation.defined())
    require_matrix(stream, args.pre_activation, dtype, rows, columns, "pre_activation");
  TERCET_REQUIRE(!args.accumulate || args.activation == Activation::none, "an activation cannot be accumulated");
  if (args.out.elements() == 0) return;
  const bool gelu = args.activation == Activation::gelu;
  const Tensor& target = gelu && args.pre_activation.defined() ? args.pre_activation : args.out;
  static_cast<GpuStream&>(stream).product({.a = args.x,
                                           .b = args.weight,
                                           .c = target,
                                           .bias = args.accumulate ? Tensor() : args.bias,
                                           .transpose_b = true,
                                           .relu = args.activation == Activation::relu,
                                           .alpha = args.alpha,
                                           .beta = args.accumulate ? 1.0 : 0.0});
  if (args.accumulate && args.bias.defined()) queue_bias(stream, args.out, args.bias);
  if (gelu) queue_gelu(stream, target, args.out);
}

void linear_backward(Stream& stream, const LinearBackwardArgs& args) {
  require_rank(args.d_out, 2, "d_out");
  const DType dtype = args.d_out.dtype;
  const int64_t rows = args.d_out.rows();
  const int64_t columns = args.d_out.columns();
  require_matrix(stream, args.d_out, dtype, rows, columns, "d_out");
  if (args.activation == Activation::relu) require_matrix(stream, args.out, dtype, rows, columns, "out");
  if (args.activation == Activation::gelu)
    require_matrix(stream, args.pre_activation, dtype, rows, columns, "pre_activation");
  if (args.d_bias.defined()) require_vector(stream, args.d_bias, gradient_dtype(args.d_bias, dtype), columns, "d_bias");
  if (args.d_x.defined()) {
    require_rank(args.d_x, 2, "d_x");
    require_matrix(stream, args.d_x, dtype, rows, args.d_x.columns(), "d_x");
    require_matrix(stream, args.weight, dtype, columns, args.d_x.columns(), "weight");
  }
  if (args.d_weight.defined()) {
    require_rank(args.x, 2, "x");
    require_matrix(stream, args.x, dtype, rows, args.x.columns(), "x");
    require_gradient(stream, args.d_weight, dtype, columns, args.x.columns());
  }
  queue_elementwise_backward(stream, args);
  GpuStream& gpu = static_cast<GpuStream&>(stream);
  if (args.d_x.defined() && args.d_x.elements() > 0)
    gpu.product({.a = args.d_out,
                 .b = args.weight,
                 .c = args.d_x,
                 .alpha = args.alpha,
                 .beta = args.accumulate_d_x ? 1.0 : 0.0});
  if (args.d_weight.defined() && args.d_weight.elements() > 0 && rows > 0)
    gpu.product(
        {.a = args.d_out, .b = args.x, .c = args.d_weight, .transpose_a = true, .alpha = args.alpha, .beta = 1.0});
}

}  // namespace tercet::gpu
