// Layer normalisation with its residual addition on the GPU.
//
// Layout    rows [T, H] of any pitch; the columns of a row are cut into runs of 16 bytes, dealt to its threads in turn.
// Floor     forward 2 + 2 bytes per bf16 element, with a residual 2 (x) + 2 (residual) + 2 (sum) + 2 (out); backward
//           2 (d_out) + 2 (sum) + 2 (d_residual) + 2 (d_sum).
// Forward   a warp per row up to H = 2048, a block per row above; the whole row is read once and kept in registers, so
//           that the variance is taken in a second pass over them, without cancellation.
// Backward  a block walks over a fixed part of the rows, several at a time when they are short. A thread owns the same
//           columns of every row and adds d_gamma and d_beta up in registers; blocks write partial sums, which a second
//           kernel adds in order. One barrier per step: the sums of a row have two homes that take turns.
// Sources   rows in registers, partial sums per block: NVIDIA apex's FastLayerNorm (pull request 1037).
#include <algorithm>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr int kForwardWarps = 4;  // rows of a block when each has a warp
constexpr int kBackwardThreads = 512;
constexpr int64_t kMaxPartialBlocks = 264;  // two per multiprocessor of an H200
constexpr int kAddColumns = 32;             // of a block of the second backward kernel
constexpr int kAddGroups = 8;

// A row of H columns as `kThreads` threads hold it, kElements each: run r of thread i starts at column (r kThreads + i)
// kPack. Runs are single elements where rows do not align.
template <class T, int kThreads, int kElements, bool kPacks>
struct RowShape {
  static constexpr int kPack = kPacks ? Pack<T>::kCount : 1;
  static constexpr int kRuns = kElements / kPack;

  static __device__ __forceinline__ int column(int run, int thread) { return (run * kThreads + thread) * kPack; }
};

// The sum of x over the threads of a row, the same in each. `shared` holds 33 floats.
template <int kThreads>
__device__ __forceinline__ float row_sum(float x, float* shared) {
  if constexpr (kThreads == kWarp)
    return warp_sum(x);
  else
    return block_sum(x, shared);
}

template <class T>
struct ForwardRows {
  Rows<const T> x, residual;
  Rows<T> sum, out;
  const T* gamma;
  const T* beta;
  float* mean;
  float* rstd;
  float epsilon;
};

// sum = x + residual as it is stored, in registers; x itself without a residual. Returns the sum of its elements.
template <class Shape, class T>
__device__ __forceinline__ float load_sum(const ForwardRows<T>& rows, int64_t row, int columns, int thread,
                                          float (&x)[Shape::kRuns][Shape::kPack]) {
  float total = 0;
#pragma unroll
  for (int run = 0; run < Shape::kRuns; ++run) {
    const int column = Shape::column(run, thread);
    const bool valid = column < columns;
    load_whole(rows.x[row] + column, valid, x[run]);
    if (rows.residual.data != nullptr) {
      float other[Shape::kPack];
      load_whole(rows.residual[row] + column, valid, other);
#pragma unroll
      for (int j = 0; j < Shape::kPack; ++j) x[run][j] = to_float(from_float<T>(x[run][j] + other[j]));
      store_whole(rows.sum[row] + column, valid, x[run]);
    }
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) total += x[run][j];
  }
  return total;
}

template <class Shape>
__device__ __forceinline__ float squared_differences(const float (&x)[Shape::kRuns][Shape::kPack], float mean,
                                                     int columns, int thread) {
  float total = 0;
#pragma unroll
  for (int run = 0; run < Shape::kRuns; ++run) {
    const bool valid = Shape::column(run, thread) < columns;
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) {
      const float difference = valid ? x[run][j] - mean : 0.0f;
      total += difference * difference;
    }
  }
  return total;
}

template <class Shape, class T>
__device__ __forceinline__ void store_normalized(const ForwardRows<T>& rows, int64_t row, int columns, int thread,
                                                 float mean, float rstd, float (&x)[Shape::kRuns][Shape::kPack]) {
#pragma unroll
  for (int run = 0; run < Shape::kRuns; ++run) {
    const int column = Shape::column(run, thread);
    const bool valid = column < columns;
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) x[run][j] = (x[run][j] - mean) * rstd;
    if (rows.gamma != nullptr) {
      float gamma[Shape::kPack];
      load_whole(rows.gamma + column, valid, gamma);
#pragma unroll
      for (int j = 0; j < Shape::kPack; ++j) x[run][j] *= gamma[j];
    }
    if (rows.beta != nullptr) {
      float beta[Shape::kPack];
      load_whole(rows.beta + column, valid, beta);
#pragma unroll
      for (int j = 0; j < Shape::kPack; ++j) x[run][j] += beta[j];
    }
    store_whole(rows.out[row] + column, valid, x[run]);
  }
}

// kThreads == 32: a block holds kForwardWarps rows; else a block is a row.
template <class T, int kThreads, int kElements, bool kPacks>
__global__ void __launch_bounds__(kThreads == kWarp ? kForwardWarps * kWarp : kThreads, 1)
    forward_kernel(ForwardRows<T> rows, int64_t count, int columns) {
  using Shape = RowShape<T, kThreads, kElements, kPacks>;
  __shared__ float shared[33];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t row = kThreads == kWarp ? int64_t{blockIdx.x} * kForwardWarps + threadIdx.x / kWarp : blockIdx.x;
  if (row >= count) return;
  const auto width = static_cast<float>(columns);
  float x[Shape::kRuns][Shape::kPack];
  const float mean = row_sum<kThreads>(load_sum<Shape>(rows, row, columns, thread, x), shared) / width;
  const float variance = row_sum<kThreads>(squared_differences<Shape>(x, mean, columns, thread), shared) / width;
  const float rstd = 1.0f / sqrtf(variance + rows.epsilon);
  store_normalized<Shape>(rows, row, columns, thread, mean, rstd, x);
  if (thread != 0) return;
  if (rows.mean != nullptr) rows.mean[row] = mean;
  if (rows.rstd != nullptr) rows.rstd[row] = rstd;
}

template <class T>
struct BackwardRows {
  Rows<const T> d_out, sum, d_residual;
  Rows<T> d_sum;
  const float* mean;
  const float* rstd;
  const T* gamma;
  float* partial;  // [blocks][2][H] sums of d_gamma and d_beta, or nullptr
};

// One row in the registers of a thread: g = d_out gamma and xhat, and the parameters' gradients so far.
template <class Shape>
struct RowGradient {
  static constexpr bool kLong = Shape::kRuns * Shape::kPack > 16;
  float g[Shape::kRuns][Shape::kPack];
  float xhat[Shape::kRuns][Shape::kPack];
  float d_gamma[Shape::kRuns][Shape::kPack];
  float d_beta[Shape::kRuns][Shape::kPack];
};

// One run of a row: d_out, then (in `multiply_gamma`) g, and xhat; zeros beyond the row.
template <class T, int kPack>
__device__ __forceinline__ void load_gradient_run(const BackwardRows<T>& rows, int64_t row, int column, bool valid,
                                                  float (&d_out)[kPack], float (&xhat)[kPack]) {
  const float mean = rows.mean[row], rstd = rows.rstd[row];
  load_whole(rows.d_out[row] + column, valid, d_out);
  load_whole(rows.sum[row] + column, valid, xhat, mean);
#pragma unroll
  for (int j = 0; j < kPack; ++j) xhat[j] = (xhat[j] - mean) * rstd;
}

template <class T, int kPack>
__device__ __forceinline__ void multiply_gamma(const T* gamma, int column, bool valid, float (&g)[kPack]) {
  if (gamma == nullptr) return;
  float factor[kPack];
  load_whole(gamma + column, valid, factor);
#pragma unroll
  for (int j = 0; j < kPack; ++j) g[j] *= factor[j];
}

// Loads a row and returns this thread's part of sum g and sum g xhat. Of the longest rows `store_gradient` reads g and
// xhat again (from a cache): registers do not hold them beside the parameters' gradients. There a barrier keeps the
// compiler from loading all runs at once.
template <class Shape, class T>
__device__ __forceinline__ float2 load_gradient(const BackwardRows<T>& rows, int64_t row, int columns, int thread,
                                                RowGradient<Shape>& r) {
  float2 sums = {0, 0};
#pragma unroll
  for (int run = 0; run < Shape::kRuns; ++run) {
    const int column = Shape::column(run, thread);
    const bool valid = column < columns;
    if constexpr (RowGradient<Shape>::kLong) __syncwarp();
    load_gradient_run(rows, row, column, valid, r.g[run], r.xhat[run]);
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) {
      r.d_gamma[run][j] += r.g[run][j] * r.xhat[run][j];
      r.d_beta[run][j] += r.g[run][j];
    }
    multiply_gamma(rows.gamma, column, valid, r.g[run]);
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) {
      sums.x += r.g[run][j];
      sums.y += r.g[run][j] * r.xhat[run][j];
    }
  }
  return sums;
}

template <class Shape, class T>
__device__ __forceinline__ void store_gradient(const BackwardRows<T>& rows, int64_t row, int columns, int thread,
                                               float mean_g, float mean_gx, RowGradient<Shape>& r) {
  const float rstd = rows.rstd[row];
#pragma unroll
  for (int run = 0; run < Shape::kRuns; ++run) {
    const int column = Shape::column(run, thread);
    const bool valid = column < columns;
    if constexpr (RowGradient<Shape>::kLong) {
      __syncwarp();
      load_gradient_run(rows, row, column, valid, r.g[run], r.xhat[run]);
      multiply_gamma(rows.gamma, column, valid, r.g[run]);
    }
#pragma unroll
    for (int j = 0; j < Shape::kPack; ++j) r.g[run][j] = rstd * (r.g[run][j] - mean_g - r.xhat[run][j] * mean_gx);
    if (rows.d_residual.data != nullptr) {
      float other[Shape::kPack];
      load_whole(rows.d_residual[row] + column, valid, other);
#pragma unroll
      for (int j = 0; j < Shape::kPack; ++j) r.g[run][j] += other[j];
    }
    store_whole(rows.d_sum[row] + column, valid, r.g[run]);
  }
}

// Adds both sums over the threads of a row; `shared` holds a pair per warp of the block, and is free again two calls
// later.
template <int kThreads>
__device__ __forceinline__ float2 group_sums(float2 sums, float2* shared) {
  sums = {warp_sum(sums.x), warp_sum(sums.y)};
  if constexpr (kThreads == kWarp) return sums;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = sums;
  __syncthreads();
  constexpr int kWarps = kThreads / kWarp;
  const float2* own = shared + warp / kWarps * kWarps;
  float2 total = {0, 0};
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    total.x += own[w].x;
    total.y += own[w].y;
  }
  return total;
}

// Adds the groups' gradients in order, in the memory of the block's partial sums.
template <class Shape, int kGroups>
__device__ __forceinline__ void store_partial(float* partial, int columns, int thread, int group,
                                              const RowGradient<Shape>& r) {
  for (int turn = 0; turn < kGroups; ++turn) {
    if (turn == group) {
#pragma unroll
      for (int run = 0; run < Shape::kRuns; ++run)
#pragma unroll
        for (int j = 0; j < Shape::kPack; ++j) {
          const int column = Shape::column(run, thread) + j;
          if (column >= columns) continue;
          partial[column] = r.d_gamma[run][j] + (turn == 0 ? 0.0f : partial[column]);
          partial[columns + column] = r.d_beta[run][j] + (turn == 0 ? 0.0f : partial[columns + column]);
        }
    }
    if (kGroups > 1) __syncthreads();
  }
}

// A block takes rows [blockIdx.x part, (blockIdx.x + 1) part), as many at a time as it has threads for.
template <class T, int kThreads, int kElements, bool kPacks>
__global__ void __launch_bounds__(kBackwardThreads, kPacks&& kElements == 8 ? 2 : 1)
    backward_kernel(BackwardRows<T> rows, int64_t count, int64_t part, int columns) {
  using Shape = RowShape<T, kThreads, kElements, kPacks>;
  constexpr int kGroups = kBackwardThreads / kThreads;
  __shared__ float2 shared[2][kBackwardThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  const int64_t begin = blockIdx.x * part;
  const int64_t end = min(count, begin + part);
  const auto width = static_cast<float>(columns);
  RowGradient<Shape> r = {};
  int home = 0;
  for (int64_t first = begin; first < end; first += kGroups, home ^= 1) {
    const int64_t row = first + group;
    float2 sums = {0, 0};
    if (row < end) sums = load_gradient<Shape>(rows, row, columns, thread, r);
    sums = group_sums<kThreads>(sums, shared[home]);
    if (row < end) store_gradient<Shape>(rows, row, columns, thread, sums.x / width, sums.y / width, r);
  }
  if (rows.partial != nullptr)
    store_partial<Shape, kGroups>(rows.partial + int64_t{blockIdx.x} * 2 * columns, columns, thread, group, r);
}

// d_gamma[h] += sum over blocks of partial[block][0][h]; d_beta with [1]. Each may be nullptr.
template <class G>
__global__ void add_partials_kernel(const float* partial, int64_t blocks, int64_t columns, G* d_gamma, G* d_beta) {
  __shared__ float shared[kAddGroups][kAddColumns];
  const int lane = static_cast<int>(threadIdx.x) % kAddColumns;
  const int group = static_cast<int>(threadIdx.x) / kAddColumns;
  const int64_t column = int64_t{blockIdx.x} * kAddColumns + lane;  // of 2 H
  const int64_t part = (blocks + kAddGroups - 1) / kAddGroups;
  float sum = 0;
  if (column < 2 * columns)
    for (int64_t b = group * part; b < min(blocks, (group + 1) * part); ++b) sum += partial[b * 2 * columns + column];
  shared[group][lane] = sum;
  __syncthreads();
  G* target = column < columns ? d_gamma : d_beta;
  if (group != 0 || column >= 2 * columns || target == nullptr) return;
  for (int g = 1; g < kAddGroups; ++g) sum += shared[g][lane];
  G& element = target[column < columns ? column : column - columns];
  element = from_float<G>(to_float(element) + sum);
}

// Calls body.operator()<threads, elements>() with the first shape that holds a row.
template <class Body>
void dispatch_forward(int64_t columns, Body&& body) {
  if (columns <= 256) return body.template operator()<kWarp, 8>();
  if (columns <= 1024) return body.template operator()<kWarp, 32>();
  if (columns <= 2048) return body.template operator()<kWarp, 64>();
  if (columns <= 4096) return body.template operator()<256, 16>();
  if (columns <= 8192) return body.template operator()<256, 32>();
  if (columns <= 12288) return body.template operator()<512, 24>();
  fail_run(fmt::format("layer norm over {} columns", columns), "hidden size", "use at most 12288 on a GPU");
}

template <class Body>
void dispatch_backward(int64_t columns, Body&& body) {
  if (columns <= 256) return body.template operator()<kWarp, 8>();
  if (columns <= 1024) return body.template operator()<128, 8>();
  if (columns <= 2048) return body.template operator()<256, 8>();
  if (columns <= 4096) return body.template operator()<512, 8>();
  if (columns <= 8192) return body.template operator()<512, 16>();
  if (columns <= 12288) return body.template operator()<512, 24>();
  fail_run(fmt::format("layer norm over {} columns", columns), "hidden size", "use at most 12288 on a GPU");
}

template <class T>
ForwardRows<T> forward_rows(const LayerNormForwardArgs& args) {
  return {.x = rows_of<const T>(args.x),
          .residual = rows_of<const T>(args.residual),
          .sum = rows_of<T>(args.sum),
          .out = rows_of<T>(args.out),
          .gamma = elements<const T>(args.gamma),
          .beta = elements<const T>(args.beta),
          .mean = elements<float>(args.mean),
          .rstd = elements<float>(args.rstd),
          .epsilon = static_cast<float>(args.epsilon)};
}

// How backward cuts its rows: by the shape alone.
struct BackwardCut {
  int64_t part, blocks;
};

template <int kThreads>
BackwardCut cut_backward(int64_t rows) {
  constexpr int64_t kGroups = kBackwardThreads / kThreads;
  const int64_t part = round_up(ceil_div(rows, kMaxPartialBlocks), kGroups);
  return {part, ceil_div(rows, part)};
}

template <class T, int kThreads, int kElements>
void launch_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  const int64_t count = args.d_out.rows(), columns = args.d_out.columns();
  const BackwardCut cut = cut_backward<kThreads>(count);
  const bool parameters = args.d_gamma.defined() || args.d_beta.defined();
  BackwardRows<T> rows = {.d_out = rows_of<const T>(args.d_out),
                          .sum = rows_of<const T>(args.sum),
                          .d_residual = rows_of<const T>(args.d_residual),
                          .d_sum = rows_of<T>(args.d_sum),
                          .mean = elements<const float>(args.mean),
                          .rstd = elements<const float>(args.rstd),
                          .gamma = elements<const T>(args.gamma),
                          .partial = nullptr};
  if (parameters)
    rows.partial = static_cast<float*>(
        static_cast<GpuStream&>(stream).workspace(static_cast<size_t>(cut.blocks * 2 * columns) * sizeof(float)));
  const bool packs = columns % Pack<T>::kCount == 0 &&
                     rows_align({&args.d_out, &args.sum, &args.d_residual, &args.d_sum}) && starts_align({&args.gamma});
  dispatch_bool(packs, [&]<bool kPacks>() {
    launch(stream, "layer_norm_backward", {.grid_x = grid_of(cut.blocks), .threads = kBackwardThreads},
           backward_kernel<T, kThreads, kElements, kPacks>, rows, count, cut.part, static_cast<int>(columns));
  });
  if (!parameters) return;
  const LaunchShape shape = {.grid_x = grid_of(ceil_div<int64_t>(2 * columns, kAddColumns)),
                             .threads = kAddColumns * kAddGroups};
  const Tensor& gradient = args.d_gamma.defined() ? args.d_gamma : args.d_beta;
  const auto add = [&]<class G>() {
    launch(stream, "layer_norm_backward parameters", shape, add_partials_kernel<G>, rows.partial, cut.blocks, columns,
           elements<G>(args.d_gamma), elements<G>(args.d_beta));
  };
  if (gradient.dtype == DType::f32)
    add.template operator()<float>();
  else
    add.template operator()<T>();
}

}  // namespace

void layer_norm_forward(Stream& stream, const LayerNormForwardArgs& args) {
  require_rank(args.x, 2, "x");
  const DType dtype = args.x.dtype;
  const int64_t count = args.x.rows(), columns = args.x.columns();
  require_matrix(stream, args.x, dtype, count, columns, "x");
  require_matrix(stream, args.out, dtype, count, columns, "out");
  TERCET_REQUIRE(args.residual.defined() == args.sum.defined(), "residual and sum go together");
  if (args.residual.defined()) {
    require_matrix(stream, args.residual, dtype, count, columns, "residual");
    require_matrix(stream, args.sum, dtype, count, columns, "sum");
  }
  if (args.gamma.defined()) require_vector(stream, args.gamma, dtype, columns, "gamma");
  if (args.beta.defined()) require_vector(stream, args.beta, dtype, columns, "beta");
  if (args.mean.defined()) require_vector(stream, args.mean, DType::f32, count, "mean");
  if (args.rstd.defined()) require_vector(stream, args.rstd, DType::f32, count, "rstd");
  dispatch_element(dtype, [&]<class T>() {
    const bool packs = columns % Pack<T>::kCount == 0 && rows_align({&args.x, &args.residual, &args.sum, &args.out}) &&
                       starts_align({&args.gamma, &args.beta});
    dispatch_forward(columns, [&]<int kThreads, int kElements>() {
      constexpr int kRows = kThreads == kWarp ? kForwardWarps : 1;
      const LaunchShape shape = {.grid_x = grid_of(ceil_div<int64_t>(count, kRows)), .threads = kRows * kThreads};
      dispatch_bool(packs, [&]<bool kPacks>() {
        launch(stream, "layer_norm_forward", shape, forward_kernel<T, kThreads, kElements, kPacks>,
               forward_rows<T>(args), count, static_cast<int>(columns));
      });
    });
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  require_rank(args.d_out, 2, "d_out");
  const DType dtype = args.d_out.dtype;
  const int64_t rows = args.d_out.rows(), columns = args.d_out.columns();
  require_matrix(stream, args.d_out, dtype, rows, columns, "d_out");
  require_matrix(stream, args.sum, dtype, rows, columns, "sum");
  require_vector(stream, args.mean, DType::f32, rows, "mean");
  require_vector(stream, args.rstd, DType::f32, rows, "rstd");
  require_matrix(stream, args.d_sum, dtype, rows, columns, "d_sum");
  if (args.gamma.defined()) require_vector(stream, args.gamma, dtype, columns, "gamma");
  if (args.d_residual.defined()) require_matrix(stream, args.d_residual, dtype, rows, columns, "d_residual");
  const DType parameters = gradient_dtype(args.d_gamma.defined() ? args.d_gamma : args.d_beta, dtype);
  if (args.d_gamma.defined()) require_vector(stream, args.d_gamma, parameters, columns, "d_gamma");
  if (args.d_beta.defined()) require_vector(stream, args.d_beta, parameters, columns, "d_beta");
  dispatch_element(dtype, [&]<class T>() {
    if (rows == 0 || columns == 0) return;
    dispatch_backward(columns,
                      [&]<int kThreads, int kElements>() { launch_backward<T, kThreads, kElements>(stream, args); });
  });
}

}  // namespace tercet::gpu
