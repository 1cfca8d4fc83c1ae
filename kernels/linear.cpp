#include "kernels/linear.h"

#include <cmath>
#include <numbers>

#include "kernels/cpu.h"
#include "kernels/gemm.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Products with at most this many rows run as dot products: they are bound by reading the weights once.
constexpr int64_t kFewRows = 32;
// Weight rows of one task in a product with few rows.
constexpr int64_t kFewRowsTile = 32;
// Sides of the tiles of other products: as large as pays for BLAS, smaller while there are fewer than kMinTiles.
constexpr int64_t kMaxTileSide = 512;
constexpr int64_t kMinTileSide = 64;
constexpr int64_t kMinTiles = 8;
// Row blocks of the bias gradient: each adds up its rows, the blocks are added in order.
constexpr int64_t kBiasBlocks = 16;

// A tile of a matrix [rows, columns].
struct Tile {
  int64_t row, rows, column, columns;
};

// Calls body(tile) for the tiles that cover [rows, columns].
template <class Body>
void for_tiles(int64_t rows, int64_t columns, int64_t tile_rows, int64_t tile_columns, Body&& body) {
  const int64_t across = ceil_div(columns, tile_columns);
  thread_pool().run(ceil_div(rows, tile_rows) * across, [&](int64_t task) {
    const int64_t row = task / across * tile_rows;
    const int64_t column = task % across * tile_columns;
    body(Tile{row, std::min(tile_rows, rows - row), column, std::min(tile_columns, columns - column)});
  });
}

// Calls body(tile) for tiles of a size that suits BLAS.
template <class Body>
void for_blas_tiles(int64_t rows, int64_t columns, Body&& body) {
  int64_t tile_rows = std::clamp<int64_t>(rows, 1, kMaxTileSide);
  int64_t tile_columns = std::clamp<int64_t>(columns, 1, kMaxTileSide);
  while (ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns) < kMinTiles &&
         std::max(tile_rows, tile_columns) > kMinTileSide) {
    int64_t& longer = tile_rows >= tile_columns ? tile_rows : tile_columns;
    longer = round_up(ceil_div<int64_t>(longer, 2), int64_t{16});
  }
  for_tiles(rows, columns, tile_rows, tile_columns, body);
}

template <class T>
T gelu(T x) {
  return x * T{0.5} * (1 + std::erf(x * std::numbers::sqrt2_v<T> / 2));
}

template <class T>
T gelu_derivative(T x) {
  const T cdf = T{0.5} * (1 + std::erf(x * std::numbers::sqrt2_v<T> / 2));
  return cdf + x * std::exp(x * x / -2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
}

template <class T>
struct Forward {
  Rows<T> x, weight, out, pre_activation;
  const T* bias;
  Activation activation;
  double alpha, beta;
  int64_t depth;
};

// Bias and activation on a tile whose product is done.
template <class T>
void finish_tile(const Forward<T>& f, const Tile& tile) {
  const RowOps<T>& ops = row_ops<T>();
  for (int64_t t = tile.row; t < tile.row + tile.rows; ++t) {
    T* out = f.out[t] + tile.column;
    if (f.bias != nullptr) ops.add(out, f.bias + tile.column, tile.columns);
    if (f.pre_activation) std::copy_n(out, tile.columns, f.pre_activation[t] + tile.column);
    if (f.activation == Activation::relu) ops.relu(out, tile.columns);
    if (f.activation == Activation::gelu)
      for (int64_t m = 0; m < tile.columns; ++m) out[m] = gelu(out[m]);
  }
}

// The product of few rows, as dot products into scratch.
template <class T>
void few_rows_tile(const Forward<T>& f, const Tile& tile) {
  const RowOps<T>& ops = row_ops<T>();
  T* products = static_cast<T*>(thread_scratch(1, sizeof(T) * static_cast<size_t>(kFewRows * kFewRowsTile)));
  ops.gemm_transposed(tile.rows, tile.columns, f.depth, f.x[tile.row], f.x.pitch, f.weight[tile.column], f.weight.pitch,
                      products, kFewRowsTile);
  const T alpha = static_cast<T>(f.alpha);
  T* out = f.out[tile.row] + tile.column;
  if (f.beta == 0) return ops.scale_rows(out, f.out.pitch, alpha, products, kFewRowsTile, tile.rows, tile.columns);
  for (int64_t t = 0; t < tile.rows; ++t)
    ops.axpy(out + t * f.out.pitch, alpha, products + t * kFewRowsTile, tile.columns);
}

template <class T>
void blas_tile(const Forward<T>& f, const Tile& tile) {
  blas_gemm({Transpose::no, Transpose::yes, tile.rows, tile.columns, f.depth}, f.alpha, f.x[tile.row], f.x.pitch,
            f.weight[tile.column], f.weight.pitch, f.beta, f.out[tile.row] + tile.column, f.out.pitch);
}

template <class T>
void forward(const LinearForwardArgs& args) {
  const Forward<T> f{
      rows_of<T>(args.x),        rows_of<T>(args.weight), rows_of<T>(args.out), rows_of<T>(args.pre_activation),
      elements_of<T>(args.bias), args.activation,         args.alpha,           args.accumulate ? 1.0 : 0.0,
      args.x.columns()};
  const int64_t rows = args.out.rows();
  const int64_t columns = args.out.columns();
  if (rows <= kFewRows) {
    for_tiles(rows, columns, kFewRows, kFewRowsTile, [&](const Tile& tile) {
      few_rows_tile(f, tile);
      finish_tile(f, tile);
    });
  } else {
    for_blas_tiles(rows, columns, [&](const Tile& tile) {
      blas_tile(f, tile);
      finish_tile(f, tile);
    });
  }
}

void linear_forward_cpu(Stream&, const LinearForwardArgs& args) {
  require_rank(args.x, 2, "x");
  require_rank(args.weight, 2, "weight");
  const DType dtype = args.x.dtype;
  const int64_t rows = args.x.rows();
  const int64_t columns = args.weight.rows();
  require_matrix(args.x, dtype, rows, args.x.columns(), "x");
  require_matrix(args.weight, dtype, columns, args.x.columns(), "weight");
  require_matrix(args.out, dtype, rows, columns, "out");
  if (args.bias.defined()) require_vector(args.bias, dtype, columns, "bias");
  if (args.pre_activation.defined()) require_matrix(args.pre_activation, dtype, rows, columns, "pre_activation");
  TERCET_REQUIRE(!args.accumulate || args.activation == Activation::none, "an activation cannot be accumulated");
  dispatch_floating(dtype, [&]<class T>() { forward<T>(args); });
}

// d_out *= activation'(pre), and the sums of its rows into `sums` (or not when null), on rows [first, end).
template <class T>
void activation_gradient(const LinearBackwardArgs& args, int64_t first, int64_t end, T* sums) {
  const RowOps<T>& ops = row_ops<T>();
  const Rows<T> d_out = rows_of<T>(args.d_out);
  const Rows<T> out = rows_of<T>(args.out);
  const Rows<T> pre = rows_of<T>(args.pre_activation);
  const int64_t columns = args.d_out.columns();
  for (int64_t t = first; t < end; ++t) {
    T* d = d_out[t];
    if (args.activation == Activation::relu) ops.relu_backward(d, out[t], columns);
    if (args.activation == Activation::gelu)
      for (int64_t m = 0; m < columns; ++m) d[m] *= gelu_derivative(pre[t][m]);
    if (sums != nullptr) ops.add(sums, d, columns);
  }
}

// The gradient of the activation and of the bias.
template <class T>
void backward_elementwise(const LinearBackwardArgs& args) {
  T* d_bias = elements_of<T>(args.d_bias);
  if (args.activation == Activation::none && d_bias == nullptr) return;
  const int64_t rows = args.d_out.rows();
  const int64_t columns = args.d_out.columns();
  const int64_t grain = std::max(ceil_div(rows, kBiasBlocks), ceil_div(kTaskElements, std::max<int64_t>(1, columns)));
  const int64_t blocks = ceil_div(rows, grain);
  T* sums = nullptr;
  if (d_bias != nullptr) {
    sums = static_cast<T*>(thread_scratch(kOpScratch, sizeof(T) * static_cast<size_t>(blocks * columns)));
    std::fill_n(sums, blocks * columns, T{0});
  }
  thread_pool().for_ranges(rows, grain, [&](int64_t first, int64_t end) {
    activation_gradient<T>(args, first, end, sums == nullptr ? nullptr : sums + first / grain * columns);
  });
  if (d_bias != nullptr)
    for (int64_t b = 0; b < blocks; ++b) row_ops<T>().add(d_bias, sums + b * columns, columns);
}

template <class T>
void backward_input(const LinearBackwardArgs& args) {
  const Rows<T> d_out = rows_of<T>(args.d_out);
  const Rows<T> weight = rows_of<T>(args.weight);
  const Rows<T> d_x = rows_of<T>(args.d_x);
  const int64_t depth = args.d_out.columns();
  for_blas_tiles(args.d_x.rows(), args.d_x.columns(), [&](const Tile& tile) {
    blas_gemm({Transpose::no, Transpose::no, tile.rows, tile.columns, depth}, args.alpha, d_out[tile.row], d_out.pitch,
              weight[0] + tile.column, weight.pitch, args.accumulate_d_x ? 1 : 0, d_x[tile.row] + tile.column,
              d_x.pitch);
  });
}

template <class T>
void backward_weight(const LinearBackwardArgs& args) {
  const Rows<T> d_out = rows_of<T>(args.d_out);
  const Rows<T> x = rows_of<T>(args.x);
  const Rows<T> d_weight = rows_of<T>(args.d_weight);
  const int64_t tokens = args.d_out.rows();
  for_blas_tiles(args.d_weight.rows(), args.d_weight.columns(), [&](const Tile& tile) {
    blas_gemm({Transpose::yes, Transpose::no, tile.rows, tile.columns, tokens}, args.alpha, d_out[0] + tile.row,
              d_out.pitch, x[0] + tile.column, x.pitch, 1, d_weight[tile.row] + tile.column, d_weight.pitch);
  });
}

void require_backward(const LinearBackwardArgs& args) {
  require_rank(args.d_out, 2, "d_out");
  const DType dtype = args.d_out.dtype;
  const int64_t rows = args.d_out.rows();
  const int64_t columns = args.d_out.columns();
  require_matrix(args.d_out, dtype, rows, columns, "d_out");
  if (args.activation == Activation::relu) require_matrix(args.out, dtype, rows, columns, "out");
  if (args.activation == Activation::gelu) require_matrix(args.pre_activation, dtype, rows, columns, "pre_activation");
  if (args.d_bias.defined()) require_vector(args.d_bias, dtype, columns, "d_bias");
  if (args.d_x.defined()) {
    require_rank(args.d_x, 2, "d_x");
    require_matrix(args.d_x, dtype, rows, args.d_x.columns(), "d_x");
    require_matrix(args.weight, dtype, columns, args.d_x.columns(), "weight");
  }
  if (args.d_weight.defined()) {
    require_rank(args.d_weight, 2, "d_weight");
    require_matrix(args.d_weight, dtype, columns, args.d_weight.columns(), "d_weight");
    require_matrix(args.x, dtype, rows, args.d_weight.columns(), "x");
  }
}

void linear_backward_cpu(Stream&, const LinearBackwardArgs& args) {
  require_backward(args);
  if (args.d_out.rows() == 0) return;
  dispatch_floating(args.d_out.dtype, [&]<class T>() {
    backward_elementwise<T>(args);
    if (args.d_x.defined()) backward_input<T>(args);
    if (args.d_weight.defined()) backward_weight<T>(args);
  });
}

}  // namespace

const Op<LinearForwardArgs> linear_forward{"linear_forward", linear_forward_cpu};
const Op<LinearBackwardArgs> linear_backward{"linear_backward", linear_backward_cpu};

}  // namespace tercet
