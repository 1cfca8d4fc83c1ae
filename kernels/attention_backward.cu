// Attention of ragged sequences on the GPU, backward.
//
// Floor   causal, bf16: 5 T L D N FLOP at length L, of which two kernels do 7; 16 bytes per element of [T, H].
// Design  no atomics: a kernel over tiles of queries writes d_q, and delta for the other; a kernel over tiles of keys
//         writes d_k and d_v. Each recomputes P from log_sum_exp, 32 keys or queries at a time, and keeps its sums in
//         registers. The tiles that a block walks over arrive by cp.async in a double buffer; one barrier per tile.
//         P and dS are rounded to T for the products that follow; scores, dP, delta and sums are fp32.
// Order   sequence after sequence, the longest tiles of each first.
// Sources T. Dao, "FlashAttention-2", 2023, section 3.1; the split in two kernels trades 2 products for determinism.
#include "kernels/attention_tiles.cuh"
#include "kernels/gpu_ops.h"

namespace tercet::gpu {
namespace {

template <class T>
struct BackwardViews {
  Rows<const T> q, k, v, out, d_out;
  Rows<T> d_q, d_k, d_v;
  Rows<const float> log_sum_exp;
  float* delta;  // [T, N] scratch: d_out . out
};

// What P and dS of one query need. A query beyond the sequence has P = 0.
struct alignas(8) QueryStatistics {
  float log_sum_exp = INFINITY;  // in base 2
  float delta = 0.0f;
};

// --- Tensor cores, over tiles of queries ---

template <int kHeadSize>
struct QueryShape {
  static constexpr int kM = kHeadSize <= 64 ? 2 : 1;
  static constexpr int kQueries = 64 * kM;
  static constexpr int kKeys = kHeadSize <= 80 ? 64 : 32;
  static constexpr int kQueryElements = kQueries * kTilePitch<kHeadSize>;
  static constexpr size_t kSharedBytes = size_t{4} * kQueryElements + TilePairs<Half, kHeadSize, kKeys>::kBytes;
};

// d_out . out of the row that this pair of lanes has of 16 rows; the same in both lanes.
template <int kHeadSize, class T>
__device__ __forceinline__ float pair_dot(const T* shared, const T* global, bool valid) {
  float sum = 0.0f;
  for (int column = static_cast<int>(threadIdx.x) % 2 * 8; valid && column < kHeadSize; column += 16) {
    const Pack<T> left = load_pack(shared + column), right = load_pack(global + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += to_float(left.element[i]) * to_float(right.element[i]);
  }
  return sum + __shfl_xor_sync(kFullMask, sum, 1);
}

// The statistics of rows lane / 4 and lane / 4 + 8 of each fragment. Writes delta. `d_out` is the warp's part of a
// tile.
template <class T, int kHeadSize, int kM>
__device__ __forceinline__ void query_statistics(QueryStatistics (&statistics)[kM][2], const BackwardViews<T>& x,
                                                 const Tile& tile, const T* d_out, int warp_row, int heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = tile.sequence.first + tile.first + warp_row;
  const int rows = tile.sequence.queries - tile.first - warp_row;
  const Rows<const T> out = head_columns(x.out, tile.head, kHeadSize);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int own = 16 * m + lane / 2;
    const bool valid = own < rows;
    const float delta = pair_dot<kHeadSize>(d_out + own * kTilePitch<kHeadSize>, out[valid ? first + own : 0], valid);
    if (valid && lane % 2 == 0) x.delta[(first + own) * heads + tile.head] = delta;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 8 * half + lane / 4;
      statistics[m][half].delta = __shfl_sync(kFullMask, delta, 2 * row);
      if (16 * m + row < rows)
        statistics[m][half].log_sum_exp = x.log_sum_exp[first + 16 * m + row][tile.head] * kLog2E;
    }
  }
}

// Scores to dS, given dP. `ahead` is the position of the warp's first query minus the first key.
template <int kM, int kN>
__device__ __forceinline__ void score_gradients(float (&score)[kM][kN][4], const float (&d_p)[kM][kN][4],
                                                const QueryStatistics (&statistics)[kM][2], float factor, int ahead) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const QueryStatistics& query = statistics[m][e / 2];
        const float p = exp2_fast(score[m][n][e] * factor - query.log_sum_exp);
        score[m][n][e] = fragment_column(n, e) <= fragment_row(m, e) + ahead ? p * (d_p[m][n][e] - query.delta) : 0.0f;
      }
}

template <class T, int kHeadSize>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_queries_kernel(BackwardViews<T> x, RaggedSequences sequences, Scaling scaling, int heads) {
  using Shape = QueryShape<kHeadSize>;
  constexpr int kM = Shape::kM, kKeys = Shape::kKeys, kSlice = 32, kPitch = kTilePitch<kHeadSize>;
  const Tile tile = block_tile<true>(sequences, heads, Shape::kQueries);
  if (tile.empty) return;
  const Sequence& sequence = tile.sequence;
  T* queries = shared_memory<T>();
  T* d_outs = queries + Shape::kQueryElements;
  const int end = smaller(sequence.queries, tile.first + Shape::kQueries);
  const TilePairs<T, kHeadSize, kKeys> keys{d_outs + Shape::kQueryElements, head_columns(x.k, tile.head, kHeadSize),
                                            head_columns(x.v, tile.head, kHeadSize), end};
  const auto row_of = [&](int row) { return sequence.first + row; };
  load_tile<kHeadSize, Shape::kQueries>(queries, head_columns(x.q, tile.head, kHeadSize), tile.first, end, row_of);
  load_tile<kHeadSize, Shape::kQueries>(d_outs, head_columns(x.d_out, tile.head, kHeadSize), tile.first, end, row_of);
  keys.load(0, row_of);
  copy_async_commit();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  RowsInShared<T, kHeadSize, kM> q, d_out;
  QueryStatistics statistics[kM][2];
  float d_q[kM][kHeadSize / 8][4];
  clear(d_q);
  for (int first = 0; first < end; first += kKeys) {
    copy_async_wait<0>();
    if (first == 0) scale_tile<kHeadSize, Shape::kQueries>(queries, scaling.query);
    __syncthreads();
    if (first == 0) {
      q.load(queries, warp_row);
      d_out.load(d_outs, warp_row);
      query_statistics<T, kHeadSize>(statistics, x, tile, d_outs + warp_row * kPitch, warp_row, heads);
    }
    if (first + kKeys < end) keys.load(first + kKeys, row_of);
    copy_async_commit();
#pragma unroll 1
    for (int slice = 0; slice < kKeys; slice += kSlice) {
      const int ahead = tile.first + warp_row - first - slice;
      if (ahead + 16 * kM <= 0 || tile.first + warp_row >= sequence.queries) break;
      float score[kM][kSlice / 8][4], d_p[kM][kSlice / 8][4];
      row_products<T, kHeadSize>(score, q, keys.left_tile(first), slice);
      row_products<T, kHeadSize>(d_p, d_out, keys.right_tile(first), slice);
      score_gradients(score, d_p, statistics, scaling.score * kLog2E, ahead);
      add_weighted_rows<T, kHeadSize>(d_q, score, keys.left_tile(first), slice);
    }
  }
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = scaling.query * scaling.score;
  const Rows<T> to = head_columns(x.d_q, tile.head, kHeadSize);
  store_rows<T, kHeadSize>(Rows<T>{to[sequence.first + tile.first + warp_row], to.pitch},
                           sequence.queries - tile.first - warp_row, queries + warp_row * kPitch, d_q, factor);
}

// --- Tensor cores, over tiles of keys ---

template <int kHeadSize>
struct KeyShape {
  static constexpr int kKeys = 64;
  static constexpr int kQueries = kHeadSize <= 80 ? 64 : 32;
  static constexpr bool kKeysInRegisters = kHeadSize <= 80;
  static constexpr int kKeyElements = kKeys * kTilePitch<kHeadSize>;
  static constexpr size_t kSharedBytes =
      size_t{4} * kKeyElements + TilePairs<Half, kHeadSize, kQueries>::kBytes + 2 * sizeof(QueryStatistics) * kQueries;
};

// Transposed scores, of rows of keys and columns of queries, to P and dP to dS. `ahead` is the position of the first
// query minus the warp's first key.
template <int kN>
__device__ __forceinline__ void transposed_gradients(float (&score)[1][kN][4], float (&d_p)[1][kN][4],
                                                     const QueryStatistics* statistics, float factor, int ahead) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = fragment_column(n, e);
      const int key = fragment_row(0, e);
      const float p = exp2_fast(score[0][n][e] * factor - statistics[query].log_sum_exp);
      score[0][n][e] = key <= query + ahead ? p : 0.0f;
      d_p[0][n][e] = key <= query + ahead ? p * (d_p[0][n][e] - statistics[query].delta) : 0.0f;
    }
}

// The statistics of a tile of queries, one per thread: they are loaded beside the tile, kept in a register until the
// tile before is done, and stored in the half of a double buffer that it has left.
template <class T>
__device__ __forceinline__ QueryStatistics load_statistics(const BackwardViews<T>& x, const Tile& tile, int heads,
                                                           int query) {
  QueryStatistics statistics;
  if (query >= tile.sequence.queries) return statistics;
  const int64_t row = tile.sequence.first + query;
  statistics.log_sum_exp = x.log_sum_exp[row][tile.head] * kLog2E;
  statistics.delta = x.delta[row * heads + tile.head];
  return statistics;
}

// Writes a warp's 16 rows of d_k or d_v; `shared` is where its keys or values were.
template <class T, int kHeadSize>
__device__ __forceinline__ void store_key_gradients(const Rows<T>& to, const Tile& tile, T* shared,
                                                    const float (&gradient)[1][kHeadSize / 8][4], float factor) {
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const float factors[1][2] = {{factor, factor}};
  const Rows<T> columns = head_columns(to, tile.head, kHeadSize);
  store_rows<T, kHeadSize>(Rows<T>{columns[tile.sequence.first + tile.first + warp_row], columns.pitch},
                           tile.sequence.queries - tile.first - warp_row, shared + warp_row * kTilePitch<kHeadSize>,
                           gradient, factors);
}

template <class T, int kHeadSize>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_keys_kernel(BackwardViews<T> x, RaggedSequences sequences, Scaling scaling, int heads) {
  using Shape = KeyShape<kHeadSize>;
  using Queries = TilePairs<T, kHeadSize, Shape::kQueries>;
  constexpr int kQueries = Shape::kQueries, kSlice = 32;
  const Tile tile = block_tile<false>(sequences, heads, Shape::kKeys);
  if (tile.empty) return;
  const int end = tile.sequence.queries, thread = static_cast<int>(threadIdx.x);
  T* keys = shared_memory<T>();
  T* values = keys + Shape::kKeyElements;
  const Queries queries{values + Shape::kKeyElements, head_columns(x.q, tile.head, kHeadSize),
                        head_columns(x.d_out, tile.head, kHeadSize), end};
  auto* statistics = reinterpret_cast<QueryStatistics*>(queries.shared + 4 * Queries::kElements);
  const auto statistics_of = [&](int first) { return statistics + first / kQueries % 2 * kQueries; };
  const auto row_of = [&](int row) { return tile.sequence.first + row; };
  load_tile<kHeadSize, Shape::kKeys>(keys, head_columns(x.k, tile.head, kHeadSize), tile.first, end, row_of);
  load_tile<kHeadSize, Shape::kKeys>(values, head_columns(x.v, tile.head, kHeadSize), tile.first, end, row_of);
  queries.load(tile.first, row_of);
  copy_async_commit();
  if (thread < kQueries) statistics_of(tile.first)[thread] = load_statistics(x, tile, heads, tile.first + thread);

  const int warp_row = thread / kWarp * 16;
  std::conditional_t<Shape::kKeysInRegisters, RowsInRegisters<T, kHeadSize, 1>, RowsInShared<T, kHeadSize, 1>> k, v;
  float d_k[1][kHeadSize / 8][4], d_v[1][kHeadSize / 8][4];
  clear(d_k);
  clear(d_v);
  for (int first = tile.first; first < end; first += kQueries) {
    copy_async_wait<0>();
    scale_tile<kHeadSize, kQueries>(queries.left_tile(first), scaling.query);
    __syncthreads();
    if (first == tile.first) {
      k.load(keys, warp_row);
      v.load(values, warp_row);
    }
    if (first + kQueries < end) queries.load(first + kQueries, row_of);
    copy_async_commit();
    const QueryStatistics next = load_statistics(x, tile, heads, first + kQueries + thread);
#pragma unroll 1
    for (int slice = 0; slice < kQueries; slice += kSlice) {
      const int ahead = first + slice - tile.first - warp_row;
      if (ahead + kSlice <= 0 || tile.first + warp_row >= end) continue;
      float score[1][kSlice / 8][4], d_p[1][kSlice / 8][4];
      row_products<T, kHeadSize>(score, k, queries.left_tile(first), slice);
      row_products<T, kHeadSize>(d_p, v, queries.right_tile(first), slice);
      transposed_gradients(score, d_p, statistics_of(first) + slice, scaling.score * kLog2E, ahead);
      add_weighted_rows<T, kHeadSize>(d_v, score, queries.right_tile(first), slice);
      add_weighted_rows<T, kHeadSize>(d_k, d_p, queries.left_tile(first), slice);
    }
    if (thread < kQueries) statistics_of(first + kQueries)[thread] = next;
  }
  store_key_gradients<T, kHeadSize>(x.d_k, tile, keys, d_k, scaling.score);
  store_key_gradients<T, kHeadSize>(x.d_v, tile, values, d_v, 1.0f);
}

// --- FMA ---

inline size_t plain_backward_bytes(int head_size) {
  return sizeof(float) * kPlainTile * static_cast<size_t>(4 * plain_pitch(head_size) + 2 * kWeightPitch) +
         sizeof(QueryStatistics) * kPlainTile;
}

// Shared memory of a block: its own rows and those that it walks over.
struct PlainTiles {
  float *queries, *d_outs, *keys, *values, *p, *d_s;
  QueryStatistics* statistics;

  __device__ __forceinline__ explicit PlainTiles(int head_size) {
    const int elements = kPlainTile * plain_pitch(head_size);
    statistics = shared_memory<QueryStatistics>();
    queries = reinterpret_cast<float*>(statistics + kPlainTile);
    d_outs = queries + elements;
    keys = d_outs + elements;
    values = keys + elements;
    p = values + elements;
    d_s = p + kPlainTile * kWeightPitch;
  }
};

// Statistics of the thread's rows. Writes delta.
template <class T>
__device__ __forceinline__ void plain_query_statistics(QueryStatistics (&statistics)[kPlainRows],
                                                       const BackwardViews<T>& x, const Tile& tile, const float* d_outs,
                                                       int heads, int head_size) {
  const PlainPlace place;
  const Rows<const T> out = head_columns(x.out, tile.head, head_size);
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i) {
    const bool valid = tile.first + place.y + i < tile.sequence.queries;
    const int64_t row = tile.sequence.first + tile.first + place.y + i;
    float delta = 0.0f;
    for (int d = place.x; valid && d < head_size; d += kPlainLanes)
      delta += d_outs[(place.y + i) * plain_pitch(head_size) + d] * to_float(out[row][d]);
    statistics[i].delta = warp_sum<kPlainLanes>(delta);
    if (!valid) continue;
    statistics[i].log_sum_exp = x.log_sum_exp[row][tile.head] * kLog2E;
    if (blockIdx.y == 0 && place.x == 0) x.delta[row * heads + tile.head] = statistics[i].delta;
  }
}

template <class T, int kColumns>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_queries_plain_kernel(BackwardViews<T> x, RaggedSequences sequences, float scale, int heads,
                                            int head_size) {
  const Tile tile = block_tile<true>(sequences, heads, kPlainTile);
  if (tile.empty) return;
  const PlainPlace place;
  const PlainTiles tiles(head_size);
  const Rows<const T> k = head_columns(x.k, tile.head, head_size), v = head_columns(x.v, tile.head, head_size);
  const int end = smaller(tile.sequence.queries, tile.first + kPlainTile);
  const auto row_of = [&](int row) { return tile.sequence.first + row; };
  load_plain_tile(tiles.queries, head_columns(x.q, tile.head, head_size), head_size, tile.first, end, scale, row_of);
  load_plain_tile(tiles.d_outs, head_columns(x.d_out, tile.head, head_size), head_size, tile.first, end, 1.0f, row_of);
  __syncthreads();
  QueryStatistics statistics[kPlainRows];
  plain_query_statistics(statistics, x, tile, tiles.d_outs, heads, head_size);
  float d_q[kPlainRows][kColumns] = {};
  for (int first = 0; first < end; first += kPlainTile) {
    __syncthreads();
    load_plain_tile(tiles.keys, k, head_size, first, end, 1.0f, row_of);
    load_plain_tile(tiles.values, v, head_size, first, end, 1.0f, row_of);
    __syncthreads();
    float score[kPlainRows][kPlainKeys], d_p[kPlainRows][kPlainKeys];
    plain_products(score, tiles.queries, tiles.keys, head_size);
    plain_products(d_p, tiles.d_outs, tiles.values, head_size);
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
      for (int j = 0; j < kPlainKeys; ++j) {
        const bool seen = first + place.x + j * kPlainLanes <= tile.first + place.y + i;
        const float p = exp2_fast(score[i][j] * kLog2E - statistics[i].log_sum_exp);
        score[i][j] = seen ? p * (d_p[i][j] - statistics[i].delta) : 0.0f;
      }
    share_weights(tiles.d_s, score);
    add_plain_rows(d_q, tiles.d_s, tiles.keys, head_size);
  }
  const float factor[kPlainRows] = {scale, scale, scale, scale};
  const Rows<T> to = head_columns(x.d_q, tile.head, head_size);
  store_plain_rows(Rows<T>{to[row_of(tile.first)], to.pitch}, tile.sequence.queries - tile.first, head_size, d_q,
                   factor);
}

template <class T, int kColumns>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_keys_plain_kernel(BackwardViews<T> x, RaggedSequences sequences, float scale, int heads,
                                         int head_size) {
  const Tile tile = block_tile<false>(sequences, heads, kPlainTile);
  if (tile.empty) return;
  const PlainPlace place;
  const PlainTiles tiles(head_size);
  const Rows<const T> q = head_columns(x.q, tile.head, head_size), d_out = head_columns(x.d_out, tile.head, head_size);
  const int end = tile.sequence.queries;
  const auto row_of = [&](int row) { return tile.sequence.first + row; };
  load_plain_tile(tiles.keys, head_columns(x.k, tile.head, head_size), head_size, tile.first, end, 1.0f, row_of);
  load_plain_tile(tiles.values, head_columns(x.v, tile.head, head_size), head_size, tile.first, end, 1.0f, row_of);
  float d_k[kPlainRows][kColumns] = {}, d_v[kPlainRows][kColumns] = {};
  for (int first = tile.first; first < end; first += kPlainTile) {
    __syncthreads();
    load_plain_tile(tiles.queries, q, head_size, first, end, scale, row_of);
    load_plain_tile(tiles.d_outs, d_out, head_size, first, end, 1.0f, row_of);
    if (static_cast<int>(threadIdx.x) < kPlainTile)
      tiles.statistics[threadIdx.x] = load_statistics(x, tile, heads, first + static_cast<int>(threadIdx.x));
    __syncthreads();
    float p[kPlainRows][kPlainKeys], d_s[kPlainRows][kPlainKeys];
    plain_products(p, tiles.keys, tiles.queries, head_size);
    plain_products(d_s, tiles.values, tiles.d_outs, head_size);
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
      for (int j = 0; j < kPlainKeys; ++j) {
        const int query = place.x + j * kPlainLanes;
        const bool seen = tile.first + place.y + i <= first + query;
        p[i][j] = seen ? exp2_fast(p[i][j] * kLog2E - tiles.statistics[query].log_sum_exp) : 0.0f;
        d_s[i][j] = seen ? p[i][j] * (d_s[i][j] - tiles.statistics[query].delta) : 0.0f;
      }
    share_weights(tiles.p, p);
    share_weights(tiles.d_s, d_s);
    add_plain_rows(d_v, tiles.p, tiles.d_outs, head_size);
    add_plain_rows(d_k, tiles.d_s, tiles.queries, head_size);
  }
  const float ones[kPlainRows] = {1.0f, 1.0f, 1.0f, 1.0f};
  const Rows<T> to_k = head_columns(x.d_k, tile.head, head_size), to_v = head_columns(x.d_v, tile.head, head_size);
  const int64_t row = row_of(tile.first);
  store_plain_rows(Rows<T>{to_k[row], to_k.pitch}, end - tile.first, head_size, d_k, ones);
  store_plain_rows(Rows<T>{to_v[row], to_v.pitch}, end - tile.first, head_size, d_v, ones);
}

// --- Launchers ---

constexpr const char* kQueriesName = "attention_backward (d_q)";
constexpr const char* kKeysName = "attention_backward (d_k, d_v)";

template <class T, int kHeadSize>
void queue_mma(Stream& stream, const BackwardViews<T>& views, const RaggedSequences& sequences, int64_t tokens,
               int heads, double scale) {
  const Scaling scaling = scaling_of(scale);
  const auto shape = [&](int rows, size_t shared_bytes) {
    return attention_shape(tile_numbers(tokens, sequences.count, rows), heads, shared_bytes);
  };
  launch(stream, kQueriesName, shape(QueryShape<kHeadSize>::kQueries, QueryShape<kHeadSize>::kSharedBytes),
         attention_backward_queries_kernel<T, kHeadSize>, views, sequences, scaling, heads);
  launch(stream, kKeysName, shape(KeyShape<kHeadSize>::kKeys, KeyShape<kHeadSize>::kSharedBytes),
         attention_backward_keys_kernel<T, kHeadSize>, views, sequences, scaling, heads);
}

template <class T>
void queue_plain(Stream& stream, const BackwardViews<T>& views, const RaggedSequences& sequences, int64_t tokens,
                 int heads, int head_size, double scale) {
  dispatch_plain(tokens, sequences.count, heads, head_size, plain_backward_bytes(head_size),
                 [&]<int kColumns>(const LaunchShape& shape) {
                   launch(stream, kQueriesName, shape, attention_backward_queries_plain_kernel<T, kColumns>, views,
                          sequences, static_cast<float>(scale), heads, head_size);
                   launch(stream, kKeysName, shape, attention_backward_keys_plain_kernel<T, kColumns>, views, sequences,
                          static_cast<float>(scale), heads, head_size);
                 });
}

}  // namespace

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  const int64_t tokens = require_attention(stream, args);
  const DType dtype = args.q.dtype;
  const int64_t hidden = args.q.columns();
  require_matrix(stream, args.log_sum_exp, DType::f32, tokens, args.heads, "log_sum_exp");
  require_matrix(stream, args.d_out, dtype, tokens, hidden, "d_out");
  require_matrix(stream, args.d_q, dtype, tokens, hidden, "d_q");
  require_matrix(stream, args.d_k, dtype, tokens, hidden, "d_k");
  require_matrix(stream, args.d_v, dtype, tokens, hidden, "d_v");
  dispatch_element(dtype, [&]<class T>() {
    if (tokens == 0) return;
    const size_t delta_bytes = sizeof(float) * static_cast<size_t>(checked_mul(tokens, args.heads));
    const BackwardViews<T> views{rows_of<const T>(args.q),
                                 rows_of<const T>(args.k),
                                 rows_of<const T>(args.v),
                                 rows_of<const T>(args.out),
                                 rows_of<const T>(args.d_out),
                                 rows_of<T>(args.d_q),
                                 rows_of<T>(args.d_k),
                                 rows_of<T>(args.d_v),
                                 rows_of<const float>(args.log_sum_exp),
                                 static_cast<float*>(static_cast<GpuStream&>(stream).workspace(delta_bytes))};
    const RaggedSequences sequences{elements<const int32_t>(args.offsets), narrow<int>(args.offsets.rows() - 1)};
    const int heads = narrow<int>(args.heads);
    if (rows_align({&args.q, &args.k, &args.v, &args.out, &args.d_out, &args.d_q, &args.d_k, &args.d_v}) &&
        dispatch_mma_head_size<T>(hidden / heads, [&]<int kHeadSize>() {
          queue_mma<T, kHeadSize>(stream, views, sequences, tokens, heads, args.scale);
        }))
      return;
    queue_plain(stream, views, sequences, tokens, heads, narrow<int>(hidden / heads), args.scale);
  });
}

}  // namespace tercet::gpu
