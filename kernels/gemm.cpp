#include "kernels/gemm.h"

#include <cblas.h>

#include <algorithm>

#include "base/checked.h"

namespace tercet {
namespace {

void use_one_blas_thread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

CBLAS_TRANSPOSE cblas_transpose(Transpose transpose) { return transpose == Transpose::yes ? CblasTrans : CblasNoTrans; }

// BLAS wants pitches of at least 1 and of at least the row length, also when there is a single row.
int pitch_argument(int64_t pitch, int64_t columns) { return narrow<int>(std::max({pitch, columns, int64_t{1}})); }

template <class T, class Function>
void call(Function function, const GemmShape& s, double alpha, const T* a, int64_t a_pitch, const T* b, int64_t b_pitch,
          double beta, T* c, int64_t c_pitch) {
  if (s.m == 0 || s.n == 0) return;
  use_one_blas_thread();
  function(CblasRowMajor, cblas_transpose(s.transpose_a), cblas_transpose(s.transpose_b), narrow<int>(s.m),
           narrow<int>(s.n), narrow<int>(s.k), static_cast<T>(alpha), a,
           pitch_argument(a_pitch, s.transpose_a == Transpose::yes ? s.m : s.k), b,
           pitch_argument(b_pitch, s.transpose_b == Transpose::yes ? s.k : s.n), static_cast<T>(beta), c,
           pitch_argument(c_pitch, s.n));
}

}  // namespace

void blas_gemm(const GemmShape& shape, double alpha, const float* a, int64_t a_pitch, const float* b, int64_t b_pitch,
               double beta, float* c, int64_t c_pitch) {
  call(cblas_sgemm, shape, alpha, a, a_pitch, b, b_pitch, beta, c, c_pitch);
}

void blas_gemm(const GemmShape& shape, double alpha, const double* a, int64_t a_pitch, const double* b, int64_t b_pitch,
               double beta, double* c, int64_t c_pitch) {
  call(cblas_dgemm, shape, alpha, a, a_pitch, b, b_pitch, beta, c, c_pitch);
}

}  // namespace tercet
