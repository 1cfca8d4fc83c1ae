#include "kernels/layer_norm.h"

#include <cmath>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Row blocks of the parameters' gradients: each adds up its rows, the blocks are added in order.
constexpr int64_t kGradientBlocks = 16;

template <class T>
void forward(const LayerNormForwardArgs& args) {
  const Rows<T> x = rows_of<T>(args.x);
  const Rows<T> residual = rows_of<T>(args.residual);
  const Rows<T> sum = rows_of<T>(args.sum);
  const Rows<T> out = rows_of<T>(args.out);
  const T* gamma = elements_of<T>(args.gamma);
  const T* beta = elements_of<T>(args.beta);
  T* means = elements_of<T>(args.mean);
  T* rstds = elements_of<T>(args.rstd);
  const int64_t hidden = args.x.columns();
  parallel_rows(args.x.rows(), hidden, [&](int64_t first, int64_t end) {
    const RowOps<T>& ops = row_ops<T>();
    for (int64_t t = first; t < end; ++t) {
      const T* row = x[t];
      if (residual) {
        ops.add_to(sum[t], x[t], residual[t], hidden);
        row = sum[t];
      }
      const T mean = ops.sum(row, hidden) / static_cast<T>(hidden);
      const T variance = ops.sum_of_squared_differences(row, mean, hidden) / static_cast<T>(hidden);
      const T rstd = 1 / std::sqrt(variance + static_cast<T>(args.epsilon));
      ops.normalize(out[t], row, mean, rstd, gamma, beta, hidden);
      if (means != nullptr) means[t] = mean;
      if (rstds != nullptr) rstds[t] = rstd;
    }
  });
}

void layer_norm_forward_cpu(Stream&, const LayerNormForwardArgs& args) {
  require_rank(args.x, 2, "x");
  const DType dtype = args.x.dtype;
  const DType statistics = statistics_dtype(dtype);
  const int64_t rows = args.x.rows();
  const int64_t hidden = args.x.columns();
  require_matrix(args.x, dtype, rows, hidden, "x");
  require_matrix(args.out, dtype, rows, hidden, "out");
  TERCET_REQUIRE(args.residual.defined() == args.sum.defined(), "residual and sum go together");
  if (args.residual.defined()) {
    require_matrix(args.residual, dtype, rows, hidden, "residual");
    require_matrix(args.sum, dtype, rows, hidden, "sum");
  }
  if (args.gamma.defined()) require_vector(args.gamma, dtype, hidden, "gamma");
  if (args.beta.defined()) require_vector(args.beta, dtype, hidden, "beta");
  if (args.mean.defined()) require_vector(args.mean, statistics, rows, "mean");
  if (args.rstd.defined()) require_vector(args.rstd, statistics, rows, "rstd");
  dispatch_floating(dtype, [&]<class T>() { forward<T>(args); });
}

// Rows [first, end); adds to d_gamma and d_beta unless they are null.
template <class T>
void backward_rows(const LayerNormBackwardArgs& args, int64_t first, int64_t end, T* d_gamma, T* d_beta) {
  const RowOps<T>& ops = row_ops<T>();
  const Rows<T> d_out = rows_of<T>(args.d_out);
  const Rows<T> sum = rows_of<T>(args.sum);
  const Rows<T> d_residual = rows_of<T>(args.d_residual);
  const Rows<T> d_sum = rows_of<T>(args.d_sum);
  const T* gamma = elements_of<T>(args.gamma);
  const T* mean = args.mean.row<T>();
  const T* rstd = args.rstd.row<T>();
  const int64_t hidden = args.d_out.columns();
  for (int64_t t = first; t < end; ++t) {
    T sums[2];
    ops.normalize_sums(d_out[t], sum[t], mean[t], rstd[t], gamma, d_gamma, d_beta, hidden, sums);
    const T mean_g = sums[0] / static_cast<T>(hidden);
    const T mean_gx = sums[1] / static_cast<T>(hidden);
    ops.normalize_gradient(d_sum[t], d_out[t], sum[t], mean[t], rstd[t], gamma, mean_g, mean_gx,
                           d_residual ? d_residual[t] : nullptr, hidden);
  }
}

template <class T>
void backward(const LayerNormBackwardArgs& args) {
  const int64_t rows = args.d_out.rows();
  const int64_t hidden = args.d_out.columns();
  T* d_gamma = elements_of<T>(args.d_gamma);
  T* d_beta = elements_of<T>(args.d_beta);
  const int64_t grain =
      std::max(ceil_div(rows, kGradientBlocks), ceil_div(kTaskElements, std::max<int64_t>(1, hidden)));
  const int64_t blocks = ceil_div(rows, grain);
  T* partial = static_cast<T*>(thread_scratch(kOpScratch, sizeof(T) * static_cast<size_t>(2 * blocks * hidden)));
  std::fill_n(partial, 2 * blocks * hidden, T{0});
  thread_pool().for_ranges(rows, grain, [&](int64_t first, int64_t end) {
    T* sums = partial + first / grain * 2 * hidden;
    backward_rows<T>(args, first, end, d_gamma == nullptr ? nullptr : sums,
                     d_beta == nullptr ? nullptr : sums + hidden);
  });
  for (int64_t b = 0; b < blocks; ++b) {
    if (d_gamma != nullptr) row_ops<T>().add(d_gamma, partial + 2 * b * hidden, hidden);
    if (d_beta != nullptr) row_ops<T>().add(d_beta, partial + (2 * b + 1) * hidden, hidden);
  }
}

void layer_norm_backward_cpu(Stream&, const LayerNormBackwardArgs& args) {
  require_rank(args.d_out, 2, "d_out");
  const DType dtype = args.d_out.dtype;
  const DType statistics = statistics_dtype(dtype);
  const int64_t rows = args.d_out.rows();
  const int64_t hidden = args.d_out.columns();
  require_matrix(args.d_out, dtype, rows, hidden, "d_out");
  require_matrix(args.sum, dtype, rows, hidden, "sum");
  require_vector(args.mean, statistics, rows, "mean");
  require_vector(args.rstd, statistics, rows, "rstd");
  require_matrix(args.d_sum, dtype, rows, hidden, "d_sum");
  if (args.gamma.defined()) require_vector(args.gamma, dtype, hidden, "gamma");
  if (args.d_residual.defined()) require_matrix(args.d_residual, dtype, rows, hidden, "d_residual");
  if (args.d_gamma.defined()) require_vector(args.d_gamma, dtype, hidden, "d_gamma");
  if (args.d_beta.defined()) require_vector(args.d_beta, dtype, hidden, "d_beta");
  dispatch_floating(dtype, [&]<class T>() { backward<T>(args); });
}

}  // namespace

const Op<LayerNormForwardArgs> layer_norm_forward{"layer_norm_forward", layer_norm_forward_cpu};
const Op<LayerNormBackwardArgs> layer_norm_backward{"layer_norm_backward", layer_norm_backward_cpu};

}  // namespace tercet
