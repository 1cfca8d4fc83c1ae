#include "kernels/elementwise.h"

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Calls body(row offset a, row offset b, elements) for runs of elements that are contiguous in both views of one shape.
template <class Body>
void for_runs(const Tensor& a, const Tensor& b, Body&& body) {
  if (a.contiguous() && b.contiguous()) {
    thread_pool().for_ranges(a.elements(), kTaskElements,
                             [&](int64_t first, int64_t end) { body(first, first, end - first); });
    return;
  }
  parallel_rows(a.rows(), a.columns(), [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) body(r * a.pitch, r * b.pitch, a.columns());
  });
}

void require_view(const Tensor& tensor, const char* name) {
  TERCET_REQUIRE(tensor.defined(), "{} is not given", name);
  TERCET_REQUIRE(tensor.device == DeviceKind::cpu, "{} is not in the memory of the cpu", name);
  TERCET_REQUIRE(tensor.rows() <= 1 || tensor.pitch >= tensor.columns(), "the rows of {} overlap", name);
}

void require_same_shape(const Tensor& source, const Tensor& target) {
  require_view(source, "source");
  require_view(target, "target");
  TERCET_REQUIRE(source.rank == target.rank && source.shape == target.shape, "source is {}, target is {}",
                 source.describe(), target.describe());
}

void cast_cpu(Stream&, const CastArgs& args) {
  require_same_shape(args.source, args.target);
  TERCET_REQUIRE(is_floating(args.source.dtype) && is_floating(args.target.dtype), "{} cannot be cast to {}",
                 args.source.describe(), args.target.describe());
  const auto* source = static_cast<const std::byte*>(args.source.data);
  auto* target = static_cast<std::byte*>(args.target.data);
  const auto source_size = static_cast<int64_t>(dtype_size(args.source.dtype));
  const auto target_size = static_cast<int64_t>(dtype_size(args.target.dtype));
  for_runs(args.source, args.target, [&](int64_t from, int64_t to, int64_t count) {
    convert(args.source.dtype, source + from * source_size, args.target.dtype, target + to * target_size, count);
  });
}

void add_scaled_cpu(Stream&, const AddScaledArgs& args) {
  require_same_shape(args.source, args.target);
  TERCET_REQUIRE(args.source.dtype == args.target.dtype, "source is {}, target is {}", args.source.describe(),
                 args.target.describe());
  dispatch_floating(args.source.dtype, [&]<class T>() {
    const T* source = args.source.row<T>();
    T* target = args.target.row<T>();
    for_runs(args.source, args.target, [&](int64_t from, int64_t to, int64_t count) {
      row_ops<T>().axpy(target + to, static_cast<T>(args.scale), source + from, count);
    });
  });
}

void affine_cpu(Stream&, const AffineArgs& args) {
  require_view(args.x, "x");
  dispatch_floating(args.x.dtype, [&]<class T>() {
    T* x = args.x.row<T>();
    for_runs(args.x, args.x, [&](int64_t at, int64_t, int64_t count) {
      row_ops<T>().affine(x + at, static_cast<T>(args.scale), static_cast<T>(args.shift), count);
    });
  });
}

// `many` [T, H] is indexed by `rows` [R], `few` is [R, H].
void require_row_selection(const Tensor& many, const Tensor& rows, const Tensor& few, const char* many_name,
                           const char* few_name) {
  require_rank(many, 2, many_name);
  require_rank(rows, 1, "rows");
  require_vector(rows, DType::i32, rows.rows(), "rows");
  require_matrix(many, many.dtype, many.rows(), many.columns(), many_name);
  require_matrix(few, many.dtype, rows.rows(), many.columns(), few_name);
  require_indices(rows.row<int32_t>(), rows.rows(), many.rows(), "rows");
}

void gather_rows_cpu(Stream&, const GatherRowsArgs& args) {
  require_row_selection(args.x, args.rows, args.out, "x", "out");
  dispatch_floating(args.x.dtype, [&]<class T>() {
    const Rows<T> x = rows_of<T>(args.x);
    const Rows<T> out = rows_of<T>(args.out);
    const int32_t* rows = args.rows.row<int32_t>();
    parallel_rows(args.out.rows(), args.out.columns(), [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) std::copy_n(x[rows[r]], args.out.columns(), out[r]);
    });
  });
}

void scatter_add_rows_cpu(Stream&, const ScatterAddRowsArgs& args) {
  require_row_selection(args.out, args.rows, args.x, "out", "x");
  dispatch_floating(args.x.dtype, [&]<class T>() {
    const Rows<T> x = rows_of<T>(args.x);
    const Rows<T> out = rows_of<T>(args.out);
    const int32_t* rows = args.rows.row<int32_t>();
    parallel_columns(args.x.columns(), [&](int64_t first, int64_t end) {
      for (int64_t r = 0; r < args.x.rows(); ++r) row_ops<T>().add(out[rows[r]] + first, x[r] + first, end - first);
    });
  });
}

}  // namespace

const Op<CastArgs> cast{"cast", cast_cpu};
const Op<AddScaledArgs> add_scaled{"add_scaled", add_scaled_cpu};
const Op<AffineArgs> affine{"affine", affine_cpu};
const Op<GatherRowsArgs> gather_rows{"gather_rows", gather_rows_cpu};
const Op<ScatterAddRowsArgs> scatter_add_rows{"scatter_add_rows", scatter_add_rows_cpu};

}  // namespace tercet
