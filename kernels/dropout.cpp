#include "kernels/dropout.h"

#include <cmath>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// u = (k + 1/2) / 2^32 >= rate exactly when k >= threshold.
uint64_t keep_threshold(double rate) { return static_cast<uint64_t>(std::max(0.0, std::ceil(rate * 0x1p32 - 0.5))); }

template <class T>
void apply(const DropoutArgs& args) {
  const Rows<T> x = rows_of<T>(args.x);
  const int64_t* samples = args.samples.row<int64_t>();
  const int32_t* positions = args.positions.row<int32_t>();
  const int64_t hidden = args.x.columns();
  const int64_t blocks = ceil_div<int64_t>(hidden, 4);
  const uint64_t threshold = keep_threshold(args.rate);
  const T keep_scale = static_cast<T>(1 / (1 - args.rate));
  parallel_rows(args.x.rows(), hidden, [&](int64_t first, int64_t end) {
    auto* bits = static_cast<uint32_t*>(thread_scratch(1, sizeof(uint32_t) * static_cast<size_t>(4 * blocks)));
    for (int64_t t = first; t < end; ++t) {
      simd_ops().random_bits(args.key, static_cast<uint64_t>(samples[t]), static_cast<uint32_t>(positions[t]), 0,
                             blocks, bits);
      row_ops<T>().mask(x[t], bits, threshold, keep_scale, hidden);
    }
  });
}

void dropout_cpu(Stream&, const DropoutArgs& args) {
  require_rank(args.x, 2, "x");
  require_matrix(args.x, args.x.dtype, args.x.rows(), args.x.columns(), "x");
  require_vector(args.samples, DType::i64, args.x.rows(), "samples");
  require_vector(args.positions, DType::i32, args.x.rows(), "positions");
  TERCET_REQUIRE(args.rate >= 0 && args.rate < 1, "a dropout rate of {}", args.rate);
  dispatch_floating(args.x.dtype, [&]<class T>() {
    if (args.rate > 0) apply<T>(args);
  });
}

}  // namespace

const Op<DropoutArgs> dropout{"dropout", dropout_cpu};

}  // namespace tercet
