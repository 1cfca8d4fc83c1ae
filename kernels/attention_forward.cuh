// Forward attention kernels for any source of keys: beside the queries (attention_forward.cu) or in the blocks of a
// cache (paged_attention.cu). A kernel's Sequences say which rows are a sequence and where its keys lie.
//
// Floor   causal, bf16: 2 T L D N FLOP at length L, 8 bytes per element of [T, H]: below L of about 700 memory decides.
// Design  a block has a tile of queries of one head and walks over tiles of keys from the first to the diagonal with an
//         online softmax in base 2. While it computes one tile, the next K and V arrive by cp.async in the other half
//         of a double buffer; one barrier per tile. P stays in registers between the two products, rounded to T.
// Order   sequence after sequence, so that the L2 holds the keys that are in use; the longest tiles of each first.
// Sources T. Dao, "FlashAttention-2", 2023; M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax",
// 2018.
#pragma once

#include "kernels/attention_tiles.cuh"

namespace tercet::gpu {

template <class T>
struct ForwardViews {
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<float> log_sum_exp;  // data is nullptr when not given
};

// --- Tensor cores ---

// Tiles of a block. Two times 16 rows per warp halve the traffic of K and V from shared memory.
template <int kHeadSize>
struct ForwardShape {
  static constexpr int kM = 2;
  static constexpr int kQueries = 64 * kM;
  static constexpr int kKeys = kHeadSize <= 80 ? 64 : 32;
  static constexpr bool kQueriesInRegisters = kHeadSize <= 64;
  static constexpr int kQueryElements = kQueries * kTilePitch<kHeadSize>;
  static constexpr size_t kSharedBytes = size_t{2} * kQueryElements + TilePairs<Half, kHeadSize, kKeys>::kBytes;
};

// The softmax over the keys seen so far of rows lane / 4 and lane / 4 + 8 of each fragment. A sum is this lane's part.
template <int kM>
struct OnlineSoftmax {
  float max[kM][2], sum[kM][2];

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max[m][half] = -INFINITY;
        sum[m][half] = 0.0f;
      }
  }

  // Turns scores into weights, exp2(factor (score - maximum)), and rescales `out` to the new maximum.
  template <int kN, int kColumns>
  __device__ __forceinline__ void update(float (&score)[kM][kN][4], float (&out)[kM][kColumns][4], float factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = max[m][half];
#pragma unroll
        for (int n = 0; n < kN; ++n) largest = fmaxf(largest, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
        largest = quad_max(largest);
        const float correction = exp2_fast((max[m][half] - largest) * factor);
        const float shift = largest * factor;
        max[m][half] = largest;
        sum[m][half] *= correction;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          out[m][i][2 * half] *= correction;
          out[m][i][2 * half + 1] *= correction;
        }
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            score[m][n][e] = exp2_fast(score[m][n][e] * factor - shift);
            sum[m][half] += score[m][n][e];
          }
      }
  }

  __device__ __forceinline__ float total(int m, int half) const {
    float x = sum[m][half];
    x += __shfl_xor_sync(kFullMask, x, 1);
    return x + __shfl_xor_sync(kFullMask, x, 2);
  }

 private:
  static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
    return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
  }
};

// Scores of keys after the query become -infinity. `ahead` is the position of this warp's first query minus the first
// key.
template <int kM, int kN>
__device__ __forceinline__ void mask_future_keys(float (&score)[kM][kN][4], int ahead) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (fragment_column(n, e) > fragment_row(m, e) + ahead) score[m][n][e] = -INFINITY;
}

// Writes out = sum of weighted values / sum of weights and log_sum_exp of the warp's rows; `shared` is where its
// queries were.
template <class T, int kHeadSize, int kM>
__device__ __forceinline__ void finish_forward(const ForwardViews<T>& x, const Tile& tile,
                                               const OnlineSoftmax<kM>& softmax,
                                               const float (&out)[kM][kHeadSize / 8][4], T* shared, int warp_row,
                                               float score_factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = tile.sequence.first + tile.first + warp_row;
  const int rows = tile.sequence.queries - tile.first - warp_row;
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax.total(m, half);
      factor[m][half] = 1.0f / sum;
      const int row = 16 * m + 8 * half + lane / 4;
      if (x.log_sum_exp.data != nullptr && lane % 4 == 0 && row < rows)
        x.log_sum_exp[first + row][tile.head] = softmax.max[m][half] * score_factor + logf(sum);
    }
  const Rows<T> to = head_columns(x.out, tile.head, kHeadSize);
  store_rows<T, kHeadSize>(Rows<T>{to[first], to.pitch}, rows, shared, out, factor);
}

template <class T, int kHeadSize, class Sequences>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_mma_kernel(ForwardViews<T> x, Sequences sequences, Scaling scaling, int heads) {
  using Shape = ForwardShape<kHeadSize>;
  constexpr int kM = Shape::kM, kKeys = Shape::kKeys;
  const Tile tile = block_tile<true>(sequences, heads, Shape::kQueries);
  if (tile.empty) return;
  const Sequence& sequence = tile.sequence;
  T* queries = shared_memory<T>();
  const int end = sequence.past + smaller(sequence.queries, tile.first + Shape::kQueries);
  const TilePairs<T, kHeadSize, kKeys> keys{queries + Shape::kQueryElements, head_columns(x.k, tile.head, kHeadSize),
                                            head_columns(x.v, tile.head, kHeadSize), end};
  const auto key_row = [&](int key) { return Sequences::key_row(sequence, key); };
  load_tile<kHeadSize, Shape::kQueries>(queries, head_columns(x.q, tile.head, kHeadSize), tile.first, sequence.queries,
                                        [&](int query) { return sequence.first + query; });
  keys.load(0, key_row);
  copy_async_commit();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  std::conditional_t<Shape::kQueriesInRegisters, RowsInRegisters<T, kHeadSize, kM>, RowsInShared<T, kHeadSize, kM>> q;
  const bool idle = tile.first + warp_row >= sequence.queries;
  OnlineSoftmax<kM> softmax;
  float out[kM][kHeadSize / 8][4];
  clear(out);
  for (int first = 0; first < end; first += kKeys) {
    copy_async_wait<0>();
    if (first == 0) scale_tile<kHeadSize, Shape::kQueries>(queries, scaling.query);
    __syncthreads();
    if (first == 0) q.load(queries, warp_row);
    if (first + kKeys < end) keys.load(first + kKeys, key_row);
    copy_async_commit();
    const int ahead = sequence.past + tile.first + warp_row - first;
    if (idle || ahead + 16 * kM <= 0) continue;
    float score[kM][kKeys / 8][4];
    row_products<T, kHeadSize>(score, q, keys.left_tile(first), 0);
    if (ahead < kKeys) mask_future_keys(score, ahead);
    softmax.update(score, out, scaling.score * kLog2E);
    add_weighted_rows<T, kHeadSize>(out, score, keys.right_tile(first), 0);
  }
  finish_forward<T, kHeadSize>(x, tile, softmax, out, queries + warp_row * kTilePitch<kHeadSize>, warp_row,
                               scaling.score);
}

// --- FMA ---

struct PlainSoftmax {
  float max[kPlainRows], sum[kPlainRows];

  // As OnlineSoftmax, of the rows of 16 threads; a thread has two keys of each row.
  template <int kColumns>
  __device__ __forceinline__ void update(float (&score)[kPlainRows][kPlainKeys], float (&out)[kPlainRows][kColumns]) {
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) {
      const float largest = fmaxf(max[i], warp_max<kPlainLanes>(fmaxf(score[i][0], score[i][1])));
      const float correction = exp2_fast((max[i] - largest) * kLog2E);
      max[i] = largest;
#pragma unroll
      for (int j = 0; j < kPlainKeys; ++j) score[i][j] = exp2_fast((score[i][j] - largest) * kLog2E);
      sum[i] = sum[i] * correction + warp_sum<kPlainLanes>(score[i][0] + score[i][1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) out[i][n] *= correction;
    }
  }
};

inline size_t plain_forward_bytes(int head_size) {
  return sizeof(float) * kPlainTile * static_cast<size_t>(3 * plain_pitch(head_size) + kWeightPitch);
}

template <class T, int kColumns>
__device__ __forceinline__ void finish_plain_forward(const ForwardViews<T>& x, const Tile& tile,
                                                     const PlainSoftmax& softmax,
                                                     const float (&out)[kPlainRows][kColumns], int head_size) {
  const PlainPlace place;
  const int64_t first = tile.sequence.first + tile.first;
  const int rows = tile.sequence.queries - tile.first;
  float factor[kPlainRows];
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i) {
    factor[i] = 1.0f / softmax.sum[i];
    if (x.log_sum_exp.data != nullptr && blockIdx.y == 0 && place.x == 0 && place.y + i < rows)
      x.log_sum_exp[first + place.y + i][tile.head] = softmax.max[i] + logf(softmax.sum[i]);
  }
  const Rows<T> to = head_columns(x.out, tile.head, head_size);
  store_plain_rows(Rows<T>{to[first], to.pitch}, rows, head_size, out, factor);
}

template <class T, int kColumns, class Sequences>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_plain_kernel(ForwardViews<T> x, Sequences sequences, float scale, int heads, int head_size) {
  const Tile tile = block_tile<true>(sequences, heads, kPlainTile);
  if (tile.empty) return;
  const Sequence& sequence = tile.sequence;
  const PlainPlace place;
  const int tile_elements = kPlainTile * plain_pitch(head_size);
  float* queries = shared_memory<float>();
  float* keys = queries + tile_elements;
  float* values = keys + tile_elements;
  float* weights = values + tile_elements;
  load_plain_tile(queries, head_columns(x.q, tile.head, head_size), head_size, tile.first, sequence.queries, scale,
                  [&](int query) { return sequence.first + query; });
  const int end = sequence.past + smaller(sequence.queries, tile.first + kPlainTile);
  const auto row_of = [&](int key) { return Sequences::key_row(sequence, key); };
  PlainSoftmax softmax;
  float out[kPlainRows][kColumns] = {};
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i) {
    softmax.max[i] = -INFINITY;
    softmax.sum[i] = 0.0f;
  }
  for (int first = 0; first < end; first += kPlainTile) {
    __syncthreads();
    load_plain_tile(keys, head_columns(x.k, tile.head, head_size), head_size, first, end, 1.0f, row_of);
    load_plain_tile(values, head_columns(x.v, tile.head, head_size), head_size, first, end, 1.0f, row_of);
    __syncthreads();
    float score[kPlainRows][kPlainKeys];
    plain_products(score, queries, keys, head_size);
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
      for (int j = 0; j < kPlainKeys; ++j)
        if (first + place.x + j * kPlainLanes > sequence.past + tile.first + place.y + i) score[i][j] = -INFINITY;
    softmax.update(score, out);
    share_weights(weights, score);
    add_plain_rows(out, weights, values, head_size);
  }
  finish_plain_forward(x, tile, softmax, out, head_size);
}

// --- Launcher ---

// What both forward ops pass: q and out [T, H], k and v [rows, H] of the keys, all checked and not empty.
struct ForwardProblem {
  const char* name;
  Tensor q, k, v, out, log_sum_exp;
  int64_t heads;
  double scale;
};

template <class T, class Sequences>
void queue_forward(Stream& stream, const ForwardProblem& problem, const Sequences& sequences) {
  const ForwardViews<T> views{rows_of<const T>(problem.q), rows_of<const T>(problem.k), rows_of<const T>(problem.v),
                              rows_of<T>(problem.out), rows_of<float>(problem.log_sum_exp)};
  const int64_t tokens = problem.q.rows(), heads = problem.heads, head_size = problem.q.columns() / heads;
  if (rows_align({&problem.q, &problem.k, &problem.v, &problem.out}) &&
      dispatch_mma_head_size<T>(head_size, [&]<int kHeadSize>() {
        using Shape = ForwardShape<kHeadSize>;
        const int64_t tiles = tile_numbers(tokens, sequences.count, Shape::kQueries);
        launch(stream, problem.name, attention_shape(tiles, heads, Shape::kSharedBytes),
               attention_forward_mma_kernel<T, kHeadSize, Sequences>, views, sequences, scaling_of(problem.scale),
               narrow<int>(heads));
      }))
    return;
  const int size = narrow<int>(head_size);
  dispatch_plain(tokens, sequences.count, heads, head_size, plain_forward_bytes(size),
                 [&]<int kColumns>(const LaunchShape& shape) {
                   launch(stream, problem.name, shape, attention_forward_plain_kernel<T, kColumns, Sequences>, views,
                          sequences, static_cast<float>(problem.scale), narrow<int>(heads), size);
                 });
}

}  // namespace tercet::gpu
