// Dropout on the GPU.
//
// Layout  x [T, H] of any pitch; a thread holds a run of 8 elements of one row, which is two Philox blocks.
// Floor   2 + 2 bytes per bf16 element; 10 rounds of two 32-bit products per 4 elements, which about balances them.
// Design  the mask is computed where it is used; elements keep when their word is at least a threshold of 33 bits.
#include <algorithm>
#include <cmath>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

template <class T, bool kPacks>
__global__ void dropout_kernel(Rows<T> values, const int64_t* samples, const int32_t* positions, uint64_t key,
                               uint64_t threshold, float keep_scale, int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  T* at = values[run.row] + run.column;
  float x[kRun];
  load_run<kPacks>(at, run.count, x);
  const auto sample = static_cast<uint64_t>(samples[run.row]);
  const auto position = static_cast<uint32_t>(positions[run.row]);
#pragma unroll
  for (int first = 0; first < kRun; first += 4) {
    const RandomWords random = random_words(key, sample, position, static_cast<uint32_t>((run.column + first) / 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) x[first + j] = random.word[j] >= threshold ? x[first + j] * keep_scale : 0.0f;
  }
  store_run<kPacks>(at, run.count, x);
}

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  require_rank(args.x, 2, "x");
  const int64_t rows = args.x.rows(), columns = args.x.columns();
  require_matrix(stream, args.x, args.x.dtype, rows, columns, "x");
  require_vector(stream, args.samples, DType::i64, rows, "samples");
  require_vector(stream, args.positions, DType::i32, rows, "positions");
  TERCET_REQUIRE(args.rate >= 0 && args.rate < 1, "a dropout rate of {}", args.rate);
  dispatch_element(args.x.dtype, [&]<class T>() {
    if (args.rate == 0) return;
    // u = (k + 1/2) / 2^32 >= rate exactly when k >= threshold.
    const auto threshold = static_cast<uint64_t>(std::max(0.0, std::ceil(args.rate * 0x1p32 - 0.5)));
    const auto keep_scale = static_cast<float>(1 / (1 - args.rate));
    dispatch_bool(rows_align({&args.x}), [&]<bool kPacks>() {
      launch(stream, "dropout", flat_shape(rows, columns), dropout_kernel<T, kPacks>, rows_of<T>(args.x),
             elements<const int64_t>(args.samples), elements<const int32_t>(args.positions), args.key, threshold,
             keep_scale, rows, columns);
    });
  });
}

}  // namespace tercet::gpu
