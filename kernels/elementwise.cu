// Copies, casts and sums over rows on the GPU.
//
// Layout  views of any pitch; a thread holds a run of 8 elements of one row.
// Floor   bytes read and written: 2 + 2 per bf16 element of cast and gather_rows, 2 + 2 + 2 of the sums.
// Design  one run per thread in 16-byte packs (element by element at the end of a row and where rows do not align);
//         views that are all contiguous are one long row, so that no thread divides. Arithmetic is fp32, one rounding.
#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

template <class S, class T, bool kPacks>
__global__ void cast_kernel(Rows<const S> source, Rows<T> target, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun];
  load_run<kPacks>(source[run.row] + run.column, run.count, x);
  store_run<kPacks>(target[run.row] + run.column, run.count, x);
}

template <class T, bool kPacks>
__global__ void add_scaled_kernel(Rows<const T> source, Rows<T> target, float scale, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun], y[kRun];
  load_run<kPacks>(source[run.row] + run.column, run.count, x);
  T* to = target[run.row] + run.column;
  load_run<kPacks>(to, run.count, y);
#pragma unroll
  for (int j = 0; j < kRun; ++j) y[j] += scale * x[j];
  store_run<kPacks>(to, run.count, y);
}

template <class T, bool kPacks>
__global__ void affine_kernel(Rows<T> values, float scale, float shift, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun];
  T* at = values[run.row] + run.column;
  load_run<kPacks>(at, run.count, x);
#pragma unroll
  for (int j = 0; j < kRun; ++j) x[j] = x[j] * scale + shift;
  store_run<kPacks>(at, run.count, x);
}

template <class T, bool kPacks>
__global__ void gather_rows_kernel(Rows<const T> source, const int32_t* index, Rows<T> out, int64_t rows,
                                   int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun];
  load_run<kPacks>(source[index[run.row]] + run.column, run.count, x);
  store_run<kPacks>(out[run.row] + run.column, run.count, x);
}

template <class T, bool kPacks>
__global__ void scatter_add_rows_kernel(Rows<const T> source, const int32_t* index, Rows<T> out, int64_t rows,
                                        int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun], y[kRun];
  load_run<kPacks>(source[run.row] + run.column, run.count, x);
  T* to = out[index[run.row]] + run.column;
  load_run<kPacks>(to, run.count, y);
#pragma unroll
  for (int j = 0; j < kRun; ++j) y[j] += x[j];
  store_run<kPacks>(to, run.count, y);
}

void require_same_shape(Stream& stream, const Tensor& source, const Tensor& target) {
  require_view(stream, source, "source");
  require_view(stream, target, "target");
  TERCET_REQUIRE(source.rank == target.rank && source.shape == target.shape, "source is {}, target is {}",
                 source.describe(), target.describe());
}

// `many` [T, H] is indexed by `rows` [R], `few` is [R, H].
void require_row_selection(Stream& stream, const Tensor& many, const Tensor& rows, const Tensor& few,
                           const char* many_name, const char* few_name) {
  require_rank(many, 2, many_name);
  require_rank(rows, 1, "rows");
  require_vector(stream, rows, DType::i32, rows.rows(), "rows");
  require_matrix(stream, many, many.dtype, many.rows(), many.columns(), many_name);
  require_matrix(stream, few, many.dtype, rows.rows(), many.columns(), few_name);
}

}  // namespace

void cast(Stream& stream, const CastArgs& args) {
  require_same_shape(stream, args.source, args.target);
  TERCET_REQUIRE(is_floating(args.source.dtype) && is_floating(args.target.dtype), "{} cannot be cast to {}",
                 args.source.describe(), args.target.describe());
  const Extent extent = flat_extent({&args.source, &args.target});
  dispatch_element(args.source.dtype, [&]<class S>() {
    dispatch_element(args.target.dtype, [&]<class T>() {
      dispatch_bool(runs_align(extent, {&args.source, &args.target}), [&]<bool kPacks>() {
        launch(stream, "cast", flat_shape(extent.rows, extent.columns), cast_kernel<S, T, kPacks>,
               rows_of<const S>(args.source), rows_of<T>(args.target), extent.rows, extent.columns);
      });
    });
  });
}

void add_scaled(Stream& stream, const AddScaledArgs& args) {
  require_same_shape(stream, args.source, args.target);
  TERCET_REQUIRE(args.source.dtype == args.target.dtype, "source is {}, target is {}", args.source.describe(),
                 args.target.describe());
  const Extent extent = flat_extent({&args.source, &args.target});
  dispatch_element(args.source.dtype, [&]<class T>() {
    dispatch_bool(runs_align(extent, {&args.source, &args.target}), [&]<bool kPacks>() {
      launch(stream, "add_scaled", flat_shape(extent.rows, extent.columns), add_scaled_kernel<T, kPacks>,
             rows_of<const T>(args.source), rows_of<T>(args.target), static_cast<float>(args.scale), extent.rows,
             extent.columns);
    });
  });
}

void affine(Stream& stream, const AffineArgs& args) {
  require_view(stream, args.x, "x");
  const Extent extent = flat_extent({&args.x});
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_bool(runs_align(extent, {&args.x}), [&]<bool kPacks>() {
      launch(stream, "affine", flat_shape(extent.rows, extent.columns), affine_kernel<T, kPacks>, rows_of<T>(args.x),
             static_cast<float>(args.scale), static_cast<float>(args.shift), extent.rows, extent.columns);
    });
  });
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  require_row_selection(stream, args.x, args.rows, args.out, "x", "out");
  const int64_t rows = args.out.rows(), columns = args.out.columns();
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_bool(rows_align({&args.x, &args.out}), [&]<bool kPacks>() {
      launch(stream, "gather_rows", flat_shape(rows, columns), gather_rows_kernel<T, kPacks>, rows_of<const T>(args.x),
             elements<const int32_t>(args.rows), rows_of<T>(args.out), rows, columns);
    });
  });
}

void scatter_add_rows(Stream& stream, const ScatterAddRowsArgs& args) {
  require_row_selection(stream, args.out, args.rows, args.x, "out", "x");
  const int64_t rows = args.x.rows(), columns = args.x.columns();
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_bool(rows_align({&args.x, &args.out}), [&]<bool kPacks>() {
      launch(stream, "scatter_add_rows", flat_shape(rows, columns), scatter_add_rows_kernel<T, kPacks>,
             rows_of<const T>(args.x), elements<const int32_t>(args.rows), rows_of<T>(args.out), rows, columns);
    });
  });
}

}  // namespace tercet::gpu
