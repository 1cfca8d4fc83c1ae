// What the attention kernels share: which sequence and tile a block works on, tiles in shared memory, and products of
// tiles, on tensor cores for 16-bit elements and by fp32 FMA for all others.
//
// Tensor cores  4 warps, each with kM times 16 rows of its own, so that a softmax never crosses warps. A tile in shared
//               memory has rows of D + 8 elements: an odd number of 16-byte chunks for D = 64, 80, 128, hence no bank
//               conflicts of load_matrices. What mma leaves in c is what it takes as a: P and dS stay in registers.
// FMA           32 x 32 scores by 128 threads, each 4 rows and 2 keys; tiles are fp32 in shared memory.
// Sources       T. Dao, "FlashAttention-2", 2023, for the split over warps; PTX ISA for the layouts of fragments.
#pragma once

#include "kernels/gpu_rows.h"

namespace tercet::gpu {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr int kAttentionThreads = 128;
// The largest head size of the FMA kernels: their tiles are in shared memory.
inline constexpr int64_t kMaxHeadSize = 256;

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

// --- Sequences ---

// Queries are the rows [first, first + queries); query i is at position past + i and sees the keys [0, past + i].
struct Sequence {
  int64_t first;
  int queries, past;
  const int32_t* blocks;  // of the cache that holds the keys; nullptr when they lie beside the queries
};

// Sequences whose keys lie beside the queries.
struct RaggedSequences {
  static constexpr int kFewestQueries = 1;

  const int32_t* offsets;
  int count;

  __device__ __forceinline__ Sequence operator[](int s) const {
    return {offsets[s], offsets[s + 1] - offsets[s], 0, nullptr};
  }
  static __device__ __forceinline__ int64_t key_row(const Sequence& sequence, int key) { return sequence.first + key; }
};

// The last s < count for which holds(s) is true; holds(0) is, and no s after the first for which it is not.
template <class Holds>
__device__ __forceinline__ int last_sequence(int count, Holds&& holds) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (holds(middle))
      low = middle;
    else
      high = middle;
  }
  return low;
}

// The sequence of a row: the last s with offsets[s] <= row.
__device__ __forceinline__ int row_owner(const int32_t* offsets, int count, int row) {
  return last_sequence(count, [&](int s) { return offsets[s] <= row; });
}

// Tiles of a sequence are numbered from offsets[s] / rows + s on, which leaves each sequence at least as many numbers
// as it has tiles; the number of the first tile is found without the lengths of the others.
inline int64_t tile_numbers(int64_t tokens, int64_t sequences, int64_t rows) { return tokens / rows + sequences; }

// A tile of rows of one sequence and one head, the work of a block. Blocks of neighbouring heads are neighbours.
struct Tile {
  Sequence sequence;
  int first;  // row in the sequence
  int head;
  bool empty;
};

// The last tile of a sequence comes first: it has the most keys.
template <bool kLastFirst, class Sequences>
__device__ __forceinline__ Tile block_tile(const Sequences& sequences, int heads, int rows) {
  const int number = static_cast<int>(blockIdx.x) / heads;
  const int owner = last_sequence(sequences.count, [&](int s) { return sequences.offsets[s] / rows + s <= number; });
  const Sequence sequence = sequences[owner];
  const int index = number - (sequences.offsets[owner] / rows + owner);
  const int tiles = (sequence.queries + rows - 1) / rows;
  const bool empty = index >= tiles || sequence.queries < Sequences::kFewestQueries;
  return {sequence, (kLastFirst ? tiles - 1 - index : index) * rows, static_cast<int>(blockIdx.x) % heads, empty};
}

// The columns of one head.
template <class T>
__device__ __forceinline__ Rows<T> head_columns(const Rows<T>& rows, int head, int head_size) {
  return {rows.data + static_cast<int64_t>(head) * head_size, rows.pitch};
}

// scale = query * score. The query's factor is applied to the elements and rounded, as OPT does; a power of two is
// exact anywhere and is left to the scores.
struct Scaling {
  float query, score;
};

inline Scaling scaling_of(double scale) {
  int exponent = 0;
  const bool power_of_two = scale > 0 && std::frexp(scale, &exponent) == 0.5;
  const auto factor = static_cast<float>(scale);
  return power_of_two ? Scaling{1.0f, factor} : Scaling{factor, 1.0f};
}

template <class T>
__device__ __forceinline__ T scaled(T x, float factor) {
  return from_float<T>(to_float(x) * factor);
}

// --- Tiles for tensor cores ---

template <int kHeadSize>
inline constexpr int kTilePitch = kHeadSize + 8;

// Rows [first, first + kRows) to shared memory, zeros from row `end` on. row_of(row) is the row's place in memory. Not
// unrolled, or the addresses take the registers that the products need.
template <int kHeadSize, int kRows, class T, class RowOf>
__device__ __forceinline__ void load_tile(T* shared, const Rows<const T>& rows, int first, int end, RowOf&& row_of) {
  constexpr int kChunks = kHeadSize / 8;
  static_assert(kRows * kChunks % kAttentionThreads == 0);
#pragma unroll 1
  for (int n = 0; n < kRows * kChunks / kAttentionThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kAttentionThreads;
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool valid = first + row < end;
    copy_async16(shared + row * kTilePitch<kHeadSize> + column, rows[valid ? row_of(first + row) : 0] + column, valid);
  }
}

// Tiles of two matrices with the same rows, K and V or Q and d_out, each in the two halves of a double buffer.
template <class T, int kHeadSize, int kRows>
struct TilePairs {
  static constexpr int kElements = kRows * kTilePitch<kHeadSize>;
  static constexpr size_t kBytes = size_t{4} * kElements * 2;

  T* shared;
  Rows<const T> left, right;  // of one head
  int end;                    // of the rows

  template <class RowOf>
  __device__ __forceinline__ void load(int first, RowOf&& row_of) const {
    load_tile<kHeadSize, kRows>(left_tile(first), left, first, end, row_of);
    load_tile<kHeadSize, kRows>(right_tile(first), right, first, end, row_of);
  }
  __device__ __forceinline__ T* left_tile(int first) const { return shared + first / kRows % 2 * kElements; }
  __device__ __forceinline__ T* right_tile(int first) const { return left_tile(first) + 2 * kElements; }
};

// Scales a tile whose copies have landed. Each thread scales what it copied itself: a barrier must follow, none
// precede.
template <int kHeadSize, int kRows, class T>
__device__ __forceinline__ void scale_tile(T* shared, float factor) {
  constexpr int kChunks = kHeadSize / 8;
  if (factor == 1.0f) return;
#pragma unroll
  for (int n = 0; n < kRows * kChunks / kAttentionThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kAttentionThreads;
    T* at = shared + i / kChunks * kTilePitch<kHeadSize> + i % kChunks * 8;
    Pack<T> pack = load_pack(at);
#pragma unroll
    for (int j = 0; j < 8; ++j) pack.element[j] = scaled(pack.element[j], factor);
    store_pack(at, pack);
  }
}

// The 16 x 16 operand a of mma at (row, column) of a tile.
template <int kHeadSize, class T>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(a, tile + (row + lane % 16) * kTilePitch<kHeadSize> + column + lane / 16 * 8);
}

// Two operands b of mma: b[k, n] = tile[row + n, column + k] for k < 16 and n < 8, n >= 8.
template <int kHeadSize, class T>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const T* tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(b, tile + (row + lane / 16 * 8 + lane % 8) * kTilePitch<kHeadSize> + column + lane / 8 % 2 * 8);
}

// The same of the tile's transpose: b[k, n] = tile[row + k, column + n].
template <int kHeadSize, class T>
__device__ __forceinline__ void load_b_trans(uint32_t (&b)[4], const T* tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices_trans(b, tile + (row + lane % 16) * kTilePitch<kHeadSize> + column + lane / 16 * 8);
}

// A warp's kM times 16 rows of a tile as operands a: read once into registers, ...
template <class T, int kHeadSize, int kM>
struct RowsInRegisters {
  uint32_t a[kM][kHeadSize / 16][4];

  __device__ __forceinline__ void load(const T* tile, int row) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int step = 0; step < kHeadSize / 16; ++step) load_a<kHeadSize>(a[m][step], tile, row + 16 * m, 16 * step);
  }
  __device__ __forceinline__ void get(uint32_t (&to)[kM][4], int step) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[m][i] = a[m][step][i];
  }
};

// ... or read at each use, where registers are short.
template <class T, int kHeadSize, int kM>
struct RowsInShared {
  const T* tile;
  int row;

  __device__ __forceinline__ void load(const T* from, int first) {
    tile = from;
    row = first;
  }
  __device__ __forceinline__ void get(uint32_t (&to)[kM][4], int step) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a<kHeadSize>(to[m], tile, row + 16 * m, 16 * step);
  }
};

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
}

// Where element e of fragment c[m][n] of mma lies in the tile.
__device__ __forceinline__ int fragment_row(int m, int e) {
  return 16 * m + static_cast<int>(threadIdx.x) % kWarp / 4 + e / 2 * 8;
}
__device__ __forceinline__ int fragment_column(int n, int e) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
}

// c = a times the transpose of the tile's rows [row, row + 8 kN).
template <class T, int kHeadSize, int kM, int kN, class RowsA>
__device__ __forceinline__ void row_products(float (&c)[kM][kN][4], const RowsA& rows, const T* tile, int row) {
  clear(c);
#pragma unroll
  for (int step = 0; step < kHeadSize / 16; ++step) {
    uint32_t a[kM][4];
    rows.get(a, step);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      load_b<kHeadSize>(b, tile, row + 8 * n, 16 * step);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_16x8x16<T>(c[m][n], a[m], b[0], b[1]);
        mma_16x8x16<T>(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// c += p, rounded to T, times the tile's rows [row, row + 8 kN).
template <class T, int kHeadSize, int kM, int kN>
__device__ __forceinline__ void add_weighted_rows(float (&c)[kM][kHeadSize / 8][4], const float (&p)[kM][kN][4],
                                                  const T* tile, int row) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      a[m][0] = pack_pair<T>(p[m][n][0], p[m][n][1]);
      a[m][1] = pack_pair<T>(p[m][n][2], p[m][n][3]);
      a[m][2] = pack_pair<T>(p[m][n + 1][0], p[m][n + 1][1]);
      a[m][3] = pack_pair<T>(p[m][n + 1][2], p[m][n + 1][3]);
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 8; i += 2) {
      uint32_t b[4];
      load_b_trans<kHeadSize>(b, tile, row + 8 * n, 8 * i);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_16x8x16<T>(c[m][i], a[m], b[0], b[1]);
        mma_16x8x16<T>(c[m][i + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Writes a warp's kM times 16 rows in packs, those before `end`. `shared` is the place of these rows in a tile that
// only this warp uses now; `to` is row 0 of the rows.
template <class T, int kHeadSize, int kM>
__device__ __forceinline__ void store_rows(const Rows<T>& to, int end, T* shared,
                                           const float (&c)[kM][kHeadSize / 8][4], const float (&factor)[kM][2]) {
  constexpr int kChunks = kHeadSize / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kHeadSize / 8; ++i) {
        T* at = shared + (16 * m + 8 * half + lane / 4) * kTilePitch<kHeadSize> + 8 * i + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(at) =
            pack_pair<T>(c[m][i][2 * half] * factor[m][half], c[m][i][2 * half + 1] * factor[m][half]);
      }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 16 * kM * kChunks / kWarp; ++n) {
    const int row = (lane + n * kWarp) / kChunks, column = (lane + n * kWarp) % kChunks * 8;
    if (row < end) store_pack(to[row] + column, load_pack(shared + row * kTilePitch<kHeadSize> + column));
  }
}

// --- Tiles for FMA ---

inline constexpr int kPlainTile = 32;
inline constexpr int kPlainRows = 4;    // of a thread
inline constexpr int kPlainKeys = 2;    // of a thread, 16 apart
inline constexpr int kPlainLanes = 16;  // threads that share rows
inline constexpr int kWeightPitch = kPlainTile + 1;

// A thread's place: rows 4 y, ..., 4 y + 3 of a tile, and keys or columns x, x + 16, ...
struct PlainPlace {
  int x = static_cast<int>(threadIdx.x) % kPlainLanes;
  int y = static_cast<int>(threadIdx.x) / kPlainLanes * kPlainRows;
};

// The n-th of a thread's kColumns columns. A block has 16 kColumns columns of the head, its neighbour in y the next.
template <int kColumns>
__device__ __forceinline__ int plain_column(int n) {
  return (static_cast<int>(blockIdx.y) * kColumns + n) * kPlainLanes + PlainPlace().x;
}

// Odd, so that threads on neighbouring rows meet different banks.
__host__ __device__ inline int plain_pitch(int head_size) { return head_size | 1; }

// Rows [first, first + 32) as fp32, zeros from row `end` on.
template <class T, class RowOf>
__device__ __forceinline__ void load_plain_tile(float* shared, const Rows<const T>& rows, int head_size, int first,
                                                int end, float factor, RowOf&& row_of) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kPlainTile * head_size; i += kAttentionThreads) {
    const int row = i / head_size, column = i % head_size;
    const bool valid = first + row < end;
    shared[row * plain_pitch(head_size) + column] =
        valid ? to_float(scaled(rows[row_of(first + row)][column], factor)) : 0.0f;
  }
}

// c[i][j] = row y + i of a times row x + 16 j of b.
__device__ __forceinline__ void plain_products(float (&c)[kPlainRows][kPlainKeys], const float* a, const float* b,
                                               int head_size) {
  const PlainPlace place;
  const int pitch = plain_pitch(head_size);
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i) c[i][0] = c[i][1] = 0.0f;
#pragma unroll 2
  for (int d = 0; d < head_size; ++d) {
    float right[kPlainKeys];
#pragma unroll
    for (int j = 0; j < kPlainKeys; ++j) right[j] = b[(place.x + j * kPlainLanes) * pitch + d];
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) {
      const float left = a[(place.y + i) * pitch + d];
#pragma unroll
      for (int j = 0; j < kPlainKeys; ++j) c[i][j] += left * right[j];
    }
  }
}

// The thread's weights to shared memory, for the 16 threads of its rows.
__device__ __forceinline__ void share_weights(float* shared, const float (&weight)[kPlainRows][kPlainKeys]) {
  const PlainPlace place;
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
    for (int j = 0; j < kPlainKeys; ++j)
      shared[(place.y + i) * kWeightPitch + place.x + j * kPlainLanes] = weight[i][j];
  __syncwarp();
}

// c[i][n] += sum over k of weight[y + i, k] tile[k, x + 16 n].
template <int kColumns>
__device__ __forceinline__ void add_plain_rows(float (&c)[kPlainRows][kColumns], const float* weight, const float* tile,
                                               int head_size) {
  const PlainPlace place;
#pragma unroll 4
  for (int k = 0; k < kPlainTile; ++k) {
    float left[kPlainRows];
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) left[i] = weight[(place.y + i) * kWeightPitch + k];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int column = plain_column<kColumns>(n);
      const float right = column < head_size ? tile[k * plain_pitch(head_size) + column] : 0.0f;
#pragma unroll
      for (int i = 0; i < kPlainRows; ++i) c[i][n] += left[i] * right;
    }
  }
}

// Writes the thread's elements of the rows before `end`; `to` is the row 0 of the tile.
template <class T, int kColumns>
__device__ __forceinline__ void store_plain_rows(const Rows<T>& to, int end, int head_size,
                                                 const float (&c)[kPlainRows][kColumns],
                                                 const float (&factor)[kPlainRows]) {
  const PlainPlace place;
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int column = plain_column<kColumns>(n);
      if (place.y + i < end && column < head_size) to[place.y + i][column] = from_float<T>(c[i][n] * factor[i]);
    }
}

// --- Launchers ---

// Blocks for this many numbers of tiles.
inline LaunchShape attention_shape(int64_t tiles, int64_t heads, size_t shared_bytes) {
  return {.grid_x = grid_of(tiles * heads), .threads = kAttentionThreads, .shared_bytes = shared_bytes};
}

// Calls body.operator()<4>() or <8>() with columns of a thread and the shape for tiles of 32 rows.
template <class Body>
void dispatch_plain(int64_t tokens, int64_t sequences, int64_t heads, int64_t head_size, size_t shared_bytes,
                    Body&& body) {
  TERCET_REQUIRE(head_size <= kMaxHeadSize, "a head size of {}, attention on a GPU takes up to {}", head_size,
                 kMaxHeadSize);
  LaunchShape shape = attention_shape(tile_numbers(tokens, sequences, kPlainTile), heads, shared_bytes);
  if (head_size <= 4 * kPlainLanes) return body.template operator()<4>(shape);
  shape.grid_y = static_cast<unsigned>(ceil_div<int64_t>(head_size, 8 * kPlainLanes));
  body.template operator()<8>(shape);
}

// Calls body.operator()<64>(), <80>() or <128>() and returns true, when T and the head size have a tensor core kernel.
template <class T, class Body>
bool dispatch_mma_head_size(int64_t head_size, Body&& body) {
  if constexpr (sizeof(T) == 2) {
    switch (head_size) {
      case 64:
        body.template operator()<64>();
        return true;
      case 80:
        body.template operator()<80>();
        return true;
      case 128:
        body.template operator()<128>();
        return true;
      default:
        break;
    }
  }
  return false;
}

// What both directions of attention share; returns the number of tokens.
template <class Args>
int64_t require_attention(Stream& stream, const Args& args) {
  require_rank(args.q, 2, "q");
  const DType dtype = args.q.dtype;
  const int64_t tokens = args.q.rows(), hidden = args.q.columns();
  require_matrix(stream, args.q, dtype, tokens, hidden, "q");
  require_matrix(stream, args.k, dtype, tokens, hidden, "k");
  require_matrix(stream, args.v, dtype, tokens, hidden, "v");
  require_matrix(stream, args.out, dtype, tokens, hidden, "out");
  TERCET_REQUIRE(args.heads >= 1 && hidden % args.heads == 0, "{} heads of a hidden size of {}", args.heads, hidden);
  require_offsets(stream, args.offsets, args.offsets.rows() - 1);
  TERCET_REQUIRE(tokens == 0 || args.offsets.rows() >= 2, "{} tokens of no sequence", tokens);
  return tokens;
}

}  // namespace tercet::gpu
