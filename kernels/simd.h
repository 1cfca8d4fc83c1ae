// Vector code for rows of fp32 and fp64, compiled three times (baseline, AVX2, AVX-512) and chosen once at start.
// Results differ between instruction sets by rounding only.
//
// The three translation units include nothing but this header and simd*.inc, so that no inline function of the standard
// library is compiled for an instruction set that the machine may lack.
#pragma once

#include <stdint.h>

namespace tercet {

// One AdamW step with its constants folded: see adamw.h.
struct AdamWConstants {
  double gradient_scale, beta1, beta2, epsilon;
  double decay;          // lr weight_decay
  double step_size;      // lr / (1 - beta1^step)
  double second_moment;  // 1 / (1 - beta2^step)
};

// Functions on contiguous runs of n >= 0 elements. T is float or double.
template <class T>
struct RowOps {
  T (*dot)(const T* a, const T* b, int64_t n);
  T (*sum)(const T* x, int64_t n);
  // sum (x - center)^2
  T (*sum_of_squared_differences)(const T* x, T center, int64_t n);
  // sum x^2 in fp64
  double (*sum_of_squares)(const T* x, int64_t n);
  // The largest element, NaN ignored; -infinity when there is none.
  T (*max)(const T* x, int64_t n);
  // The smallest index of the largest element; 0 when there is none.
  int64_t (*argmax)(const T* x, int64_t n);

  // y += x;  y += scale x;  x *= scale;  x = x scale + shift;  out = a + b
  void (*add)(T* y, const T* x, int64_t n);
  void (*axpy)(T* y, T scale, const T* x, int64_t n);
  void (*scale)(T* x, T scale, int64_t n);
  void (*affine)(T* x, T scale, T shift, int64_t n);
  void (*add_to)(T* out, const T* a, const T* b, int64_t n);
  // out[i, j] = scale x[i, j]
  void (*scale_rows)(T* out, int64_t out_row, T scale, const T* x, int64_t x_row, int64_t rows, int64_t n);
  // y += rate (x - y)
  void (*approach)(T* y, T rate, const T* x, int64_t n);
  // x = max(x, 0);  d = out > 0 ? d : 0
  void (*relu)(T* x, int64_t n);
  void (*relu_backward)(T* d, const T* out, int64_t n);

  // With y = scale x - shift <= 88: sums[0] = sum exp(y), sums[1] = sum exp(y) y, in fp64 over blocks.
  void (*exp_sums)(const T* x, T scale, T shift, int64_t n, double* sums);
  // With y = scale x - log_sum_exp and p = exp(y): x = -p (a + b y)
  void (*softmax_gradient)(T* x, T scale, T log_sum_exp, T a, T b, int64_t n);
  // One block of an online softmax on rows of scores [rows, columns], of which row i sees its first
  // clamp(first_visible + i, 0, columns): with m the larger of max[i] and the row's maximum, scores = exp(scores - m)
  // (0 where not seen), factor[i] = exp(max[i] - m), sum[i] = factor[i] sum[i] + sum of the row, max[i] = m. columns is
  // a multiple of 64 / sizeof(T).
  void (*online_softmax)(T* scores, int64_t pitch, int64_t rows, int64_t first_visible, int64_t columns, T* max, T* sum,
                         T* factor);
  // The same rows with the softmax's log_sum_exp known: scores = exp(scores - log_sum_exp[i stride]), 0 where not seen.
  void (*known_softmax)(T* scores, int64_t pitch, int64_t rows, int64_t first_visible, int64_t columns,
                        const T* log_sum_exp, int64_t stride);
  // gradient = p (gradient - delta[i]) on the same rows.
  void (*softmax_backward)(T* gradient, const T* p, int64_t pitch, int64_t rows, int64_t columns, const T* delta);

  // out = (x - mean) rstd gamma + beta; gamma and beta may be null.
  void (*normalize)(T* out, const T* x, T mean, T rstd, const T* gamma, const T* beta, int64_t n);
  // sums[0] = sum g, sums[1] = sum g xhat for g = d_out gamma, xhat = (x - mean) rstd; adds d_out xhat to d_gamma and
  // d_out to d_beta. gamma, d_gamma and d_beta may be null.
  void (*normalize_sums)(const T* d_out, const T* x, T mean, T rstd, const T* gamma, T* d_gamma, T* d_beta, int64_t n,
                         T* sums);
  // out = rstd (g - mean_g - xhat mean_gx) + d_residual; d_residual may be null and may be out.
  void (*normalize_gradient)(T* out, const T* d_out, const T* x, T mean, T rstd, const T* gamma, T mean_g, T mean_gx,
                             const T* d_residual, int64_t n);

  void (*adamw)(T* master, T* gradient, T* m, T* v, const AdamWConstants& constants, int64_t n);

  // x = bits[i] >= threshold ? x * keep_scale : 0 (dropout)
  void (*mask)(T* x, const uint32_t* bits, uint64_t threshold, T keep_scale, int64_t n);
  // z = scale x - log(-log u), u = (bits + 1/2) / 2^32
  void (*gumbel)(T* z, const T* x, T scale, const uint32_t* bits, int64_t n);

  // c[m, n] = a[m, k] b[k, n]  (gemm_add: c += ...). a[i, p] = a[i a_row + p a_column]: either index of a may be the
  // contiguous one; rows of b and c are contiguous. For small blocks that stay in the cache.
  void (*gemm)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row,
               T* c, int64_t c_row);
  void (*gemm_add)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_column, const T* b,
                   int64_t b_row, T* c, int64_t c_row);
  // c[m, n] = a[m, k] b[n, k]^T, all rows contiguous: dot products, for few rows m.
  void (*gemm_transposed)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c,
                          int64_t c_row);
  // out[columns, out_row]: out[j, i] = x[i, j]
  void (*transpose)(int64_t rows, int64_t columns, const T* x, int64_t x_row, T* out, int64_t out_row);
};

struct SimdOps {
  const char* isa;  // "baseline", "avx2", "avx512"
  int64_t bytes;    // of a vector
  RowOps<float> f32;
  RowOps<double> f64;
  // Words of RandomStream blocks [first_block, first_block + blocks) of (sample, position): out has 4 per block.
  void (*random_bits)(uint64_t key, uint64_t sample, uint32_t position, uint32_t first_block, int64_t blocks,
                      uint32_t* out);
};

extern const SimdOps kSimdBaseline;
extern const SimdOps kSimdAvx2;
extern const SimdOps kSimdAvx512;

// The best table that this machine runs. The environment variable TERCET_ISA (baseline, avx2 or avx512), read at first
// use, asks for another; throws Error(Fault::input) when the machine lacks it.
const SimdOps& simd_ops();

// Makes simd_ops() give the table of this name from now on, for tests of one instruction set against another; must not
// be called while work is running. Returns false when the machine lacks it.
bool select_simd_ops(const char* isa);

template <class T>
const RowOps<T>& row_ops();
template <>
inline const RowOps<float>& row_ops<float>() {
  return simd_ops().f32;
}
template <>
inline const RowOps<double>& row_ops<double>() {
  return simd_ops().f64;
}

}  // namespace tercet
