// Embedding on the GPU.
//
// Layout    ids [T]; table [rows, H] and tokens [T, H] of any pitch; a thread holds a run of 8 elements of one row.
// Floor     forward 2 + 2 bytes per bf16 element; backward 2 per element of d_out and 4 + 4 of each table row in use.
// Backward  no atomics: one block sorts the tokens by (table row, token) with a stable counting sort, a byte per pass;
//           then the first token of every table row adds up all tokens of that row in their order, as the CPU does.
//           The sort has a warp per contiguous part of the tokens: lanes with equal bytes find each other by votes.
// Sources   stable ranks by warp votes: A. Adinets, D. Merrill, "Onesweep: a faster least significant digit radix sort
//           for GPUs", 2022; sums by table row: llm.c's bucketed backward, here without the host.
#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

template <class T, bool kPacks, bool kAccumulate>
__global__ void embedding_forward_kernel(const int32_t* ids, Rows<const T> table, Rows<T> out, int64_t row_offset,
                                         int64_t rows, int64_t columns) {
  const Run run = thread_run(rows, columns);
  if (run.count <= 0) return;
  float x[kRun];
  load_run<kPacks>(table[ids[run.row] + row_offset] + run.column, run.count, x);
  T* to = out[run.row] + run.column;
  if constexpr (kAccumulate) {
    float y[kRun];
    load_run<kPacks>(to, run.count, y);
#pragma unroll
    for (int j = 0; j < kRun; ++j) x[j] += y[j];
  }
  store_run<kPacks>(to, run.count, x);
}

// Tokens in the order of their table rows.
struct SortedTokens {
  uint32_t* rows;
  int32_t* tokens;
};

// What a pass of the sort reads: ids in token order, or the other buffer.
struct SortSource {
  const int32_t* ids;  // nullptr after the first pass
  int64_t row_offset;
  SortedTokens sorted;

  __device__ __forceinline__ uint32_t row(int32_t i) const {
    return ids != nullptr ? static_cast<uint32_t>(ids[i] + row_offset) : sorted.rows[i];
  }
  __device__ __forceinline__ int32_t token(int32_t i) const { return ids != nullptr ? i : sorted.tokens[i]; }
};

// The lanes of `active` whose digit is this lane's.
__device__ __forceinline__ unsigned lanes_with(unsigned active, unsigned digit) {
  unsigned lanes = active;
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = (digit >> bit) & 1u;
    const unsigned votes = __ballot_sync(kFullMask, set);
    lanes &= set ? votes : ~votes;
  }
  return lanes;
}

// Calls body(index or -1, digit, lanes with the same digit) for 32 neighbours of the warp's part at a time, in order.
template <class Body>
__device__ __forceinline__ void for_digits(const SortSource& source, int32_t count, int shift, Body body) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int32_t part = (count + kSortThreads - 1) / kSortThreads * kWarp;
  const int32_t end = min(count, (warp + 1) * part);
  for (int32_t first = warp * part; first < end; first += kWarp) {
    const bool valid = first + lane < end;
    const unsigned active = __ballot_sync(kFullMask, valid);
    const unsigned digit = valid ? (source.row(first + lane) >> shift) % kDigits : 0;
    const unsigned lanes = lanes_with(active, digit);
    body(valid ? first + lane : -1, digit, lanes);
    __syncwarp();
  }
}

// Turns counts [warp][digit] into the number of elements with a smaller digit, or the same one in an earlier warp.
__device__ __forceinline__ void scan_counts(uint32_t* counts, uint32_t* warp_sums) {
  constexpr int kEach = kDigits * kSortWarps / kSortThreads;  // warps of one digit that a thread takes
  constexpr int kTakers = kSortWarps / kEach;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t* own = counts + thread % kTakers * kEach * kDigits + thread / kTakers;
  uint32_t sum = 0;
  for (int i = 0; i < kEach; ++i) sum += own[i * kDigits];
  uint32_t before = sum;
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(kFullMask, before, step);
    if (lane >= step) before += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = before;
  before -= sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  for (int i = 0; i < kEach; ++i) {
    const uint32_t next = before + own[i * kDigits];
    own[i * kDigits] = before;
    before = next;
  }
}

// One block. Pass p sorts by byte p of the table row into buffers[p % 2], keeping the order of equal bytes.
__global__ void __launch_bounds__(kSortThreads)
    sort_tokens_kernel(const int32_t* ids, int64_t row_offset, int32_t count, int passes, SortedTokens even,
                       SortedTokens odd) {
  __shared__ uint32_t counts[kDigits * kSortWarps];
  __shared__ uint32_t warp_sums[kSortWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int pass = 0; pass < passes; ++pass) {
    const SortedTokens target = pass % 2 == 0 ? even : odd;
    const SortSource source = {pass == 0 ? ids : nullptr, row_offset, pass % 2 == 0 ? odd : even};
    for (int i = static_cast<int>(threadIdx.x); i < kDigits * kSortWarps; i += kSortThreads) counts[i] = 0;
    __syncthreads();
    for_digits(source, count, pass * kDigitBits, [&](int32_t index, unsigned digit, unsigned lanes) {
      if (index >= 0 && lane == __ffs(static_cast<int>(lanes)) - 1)
        counts[warp * kDigits + static_cast<int>(digit)] += static_cast<uint32_t>(__popc(lanes));
    });
    __syncthreads();
    scan_counts(counts, warp_sums);
    __syncthreads();
    for_digits(source, count, pass * kDigitBits, [&](int32_t index, unsigned digit, unsigned lanes) {
      uint32_t& next = counts[warp * kDigits + static_cast<int>(digit)];
      const uint32_t first = next;
      __syncwarp();
      if (index < 0) return;
      const uint32_t place = first + static_cast<uint32_t>(__popc(lanes & ((1u << lane) - 1)));
      target.rows[place] = source.row(index);
      target.tokens[place] = source.token(index);
      if (lane == __ffs(static_cast<int>(lanes)) - 1) next = first + static_cast<uint32_t>(__popc(lanes));
    });
    __syncthreads();
  }
}

// The end of the run of equal rows that starts at `first`: doubling steps, then bisection.
__device__ __forceinline__ int64_t end_of_row(const uint32_t* rows, int64_t first, int64_t count) {
  const uint32_t row = rows[first];
  int64_t step = 1;
  while (first + step < count && rows[first + step] == row) step *= 2;
  int64_t low = first + step / 2, high = min(first + step, count);
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (rows[middle] == row ? low : high) = middle;
  }
  return high;
}

// A thread per run of the row of each sorted token; those of the first token of a table row do the work.
template <class T, class G, bool kPacks>
__global__ void add_rows_kernel(SortedTokens sorted, Rows<const T> d_out, Rows<G> d_table, int64_t count,
                                int64_t columns) {
  constexpr int kAhead = 4;  // rows that are loaded together
  const Run run = thread_run(count, columns);
  if (run.count <= 0) return;
  const uint32_t row = sorted.rows[run.row];
  if (run.row > 0 && sorted.rows[run.row - 1] == row) return;
  const int64_t end = end_of_row(sorted.rows, run.row, count);
  G* to = d_table[row] + run.column;
  float sum[kRun], x[kAhead][kRun];
  load_run<kPacks>(to, run.count, sum);
  for (int64_t i = run.row; i < end; i += kAhead) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const bool valid = i + a < end;
      load_run<kPacks>(d_out[valid ? sorted.tokens[i + a] : 0] + run.column, valid ? run.count : 0, x[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int j = 0; j < kRun; ++j) sum[j] += x[a][j];
  }
  store_run<kPacks>(to, run.count, sum);
}

// Checks ids, table and the token tensor, which have the same width.
void require_embedding(Stream& stream, const Tensor& ids, const Tensor& table, DType table_dtype,
                       const Tensor& tokens) {
  require_rank(ids, 1, "ids");
  require_rank(table, 2, "table");
  require_rank(tokens, 2, "tokens");
  require_vector(stream, ids, DType::i32, ids.rows(), "ids");
  require_matrix(stream, table, table_dtype, table.rows(), table.columns(), "table");
  require_matrix(stream, tokens, tokens.dtype, ids.rows(), table.columns(), "tokens");
}

// Queues the sort and returns its result.
SortedTokens sort_tokens(Stream& stream, const EmbeddingBackwardArgs& args) {
  const int64_t count = args.ids.rows();
  TERCET_REQUIRE(count <= INT32_MAX / 2 && args.d_table.rows() <= INT32_MAX, "{} tokens for a table of {} rows", count,
                 args.d_table.rows());
  auto* words = static_cast<uint32_t*>(
      static_cast<GpuStream&>(stream).workspace(static_cast<size_t>(4 * count) * sizeof(uint32_t)));
  const SortedTokens even = {words, reinterpret_cast<int32_t*>(words + count)};
  const SortedTokens odd = {words + 2 * count, reinterpret_cast<int32_t*>(words + 3 * count)};
  int passes = 1;
  while ((args.d_table.rows() - 1) >> (passes * kDigitBits) > 0) ++passes;
  launch(stream, "embedding_backward sort", {.threads = kSortThreads}, sort_tokens_kernel,
         elements<const int32_t>(args.ids), args.row_offset, static_cast<int32_t>(count), passes, even, odd);
  return passes % 2 == 1 ? even : odd;
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForwardArgs& args) {
  require_embedding(stream, args.ids, args.table, args.out.dtype, args.out);
  const int64_t rows = args.out.rows(), columns = args.out.columns();
  dispatch_element(args.out.dtype, [&]<class T>() {
    dispatch_bool(rows_align({&args.table, &args.out}), [&]<bool kPacks>() {
      dispatch_bool(args.accumulate, [&]<bool kAccumulate>() {
        launch(stream, "embedding_forward", flat_shape(rows, columns), embedding_forward_kernel<T, kPacks, kAccumulate>,
               elements<const int32_t>(args.ids), rows_of<const T>(args.table), rows_of<T>(args.out), args.row_offset,
               rows, columns);
      });
    });
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  const DType dtype = args.d_out.dtype;
  require_embedding(stream, args.ids, args.d_table, gradient_dtype(args.d_table, dtype), args.d_out);
  const int64_t rows = args.d_out.rows(), columns = args.d_out.columns();
  dispatch_element(dtype, [&]<class T>() {
    if (rows == 0 || columns == 0) return;
    const SortedTokens sorted = sort_tokens(stream, args);
    dispatch_bool(rows_align({&args.d_table, &args.d_out}), [&]<bool kPacks>() {
      const auto queue = [&]<class G>() {
        launch(stream, "embedding_backward", flat_shape(rows, columns), add_rows_kernel<T, G, kPacks>, sorted,
               rows_of<const T>(args.d_out), rows_of<G>(args.d_table), rows, columns);
      };
      if (args.d_table.dtype == DType::f32)
        queue.template operator()<float>();
      else
        queue.template operator()<T>();
    });
  });
}

}  // namespace tercet::gpu
