// Matrix products of the CPU by the system's BLAS, on the calling thread alone: ops split their products over the
// thread pool themselves, in tiles whose sizes are fixed by the shapes.
#pragma once

#include <cstdint>

namespace tercet {

enum class Transpose { no, yes };

// c[m, n] = alpha op(a)[m, k] op(b)[k, n] + beta c, all row-major with the given row pitches; op transposes when asked,
// so that a is stored [k, m] or b [n, k]. beta = 0 ignores the old contents of c. Sizes may be 0.
// Throws Error(Fault::run) when a size does not fit BLAS's 32-bit integers.
struct GemmShape {
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
  int64_t m = 0, n = 0, k = 0;
};
void blas_gemm(const GemmShape& shape, double alpha, const float* a, int64_t a_pitch, const float* b, int64_t b_pitch,
               double beta, float* c, int64_t c_pitch);
void blas_gemm(const GemmShape& shape, double alpha, const double* a, int64_t a_pitch, const double* b, int64_t b_pitch,
               double beta, double* c, int64_t c_pitch);

}  // namespace tercet
