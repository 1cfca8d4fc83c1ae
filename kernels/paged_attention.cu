// Attention against a KV cache in blocks of 32 tokens, and the cache's filling, on the GPU.
//
// Layout  a token's keys of all heads are one row of a cache; its row number is 32 block_table[s, p / 32] + p % 32.
// Floor   decoding reads 4 bytes per cached bf16 element of [T, H] and does 1 FLOP per byte: memory alone decides.
// Design  lengths, offsets and tables are read on the device, so that one captured graph serves a whole generation.
//         A slot with one new token is streamed: 4 warps take its cache blocks in turn; 8 lanes hold one row of one
//         head, so that a warp has 4 rows (times kKeys) of K and V in flight; each group of 8 lanes has a softmax of
//         its own, and they are merged at the end. Few slots are split further over the cache, by shapes alone, and a
//         second kernel merges the parts in their order. A slot with more new tokens, a prompt, goes to the kernels of
//         attention_forward.cuh, which look up the block of every row that they load.
// Sources T. Dao et al., "Flash-Decoding for long-context inference", 2023; W. Kwon et al., "PagedAttention", 2023.
#include <algorithm>

#include "kernels/attention_forward.cuh"
#include "kernels/gpu_ops.h"

namespace tercet::gpu {
namespace {

constexpr int kBlockTokens = static_cast<int>(kKvBlockTokens);

// Slots whose keys lie in the cache. Tiles are for those with more than one new token.
struct PagedSequences {
  static constexpr int kFewestQueries = 2;

  const int32_t *offsets, *lengths, *block_table;
  int64_t table_pitch;
  int count;

  __device__ __forceinline__ Sequence operator[](int s) const {
    return {offsets[s], offsets[s + 1] - offsets[s], lengths[s], block_table + s * table_pitch};
  }
  // Tokens beyond those of the slots are idle.
  __device__ __forceinline__ bool own(int64_t token) const { return token < offsets[count]; }
  static __device__ __forceinline__ int64_t key_row(const Sequence& sequence, int key) {
    return int64_t{sequence.blocks[key / kBlockTokens]} * kBlockTokens + key % kBlockTokens;
  }
};

// --- Filling the cache ---

constexpr int kAppendThreads = 256;

template <class T>
struct CacheViews {
  Rows<const T> k, v;
  Rows<T> k_cache, v_cache;
};

// A block per token.
template <class T, bool kPacks>
__global__ void __launch_bounds__(kAppendThreads)
    kv_cache_append_kernel(CacheViews<T> x, PagedSequences slots, int64_t columns) {
  const int token = static_cast<int>(blockIdx.x);
  if (!slots.own(token)) return;
  const Sequence slot = slots[row_owner(slots.offsets, slots.count, token)];
  const int64_t row = PagedSequences::key_row(slot, slot.past + token - static_cast<int>(slot.first));
  constexpr int kStep = kPacks ? Pack<T>::kCount : 1;
#pragma unroll 1
  for (int64_t i = int64_t{threadIdx.x} * kStep; i < columns; i += kAppendThreads * kStep) {
    if constexpr (kPacks) {
      const Pack<T> k = load_pack(x.k[token] + i), v = load_pack(x.v[token] + i);
      store_pack(x.k_cache[row] + i, k);
      store_pack(x.v_cache[row] + i, v);
    } else {
      x.k_cache[row][i] = x.k[token][i];
      x.v_cache[row][i] = x.v[token][i];
    }
  }
}

// --- Streaming the cache for one query ---

constexpr int kRowLanes = 8;                  // lanes that share a row
constexpr int kWarpRows = kWarp / kRowLanes;  // rows of a warp at a time
constexpr int kWarps = kAttentionThreads / kWarp;

// How the cache is streamed. A part of the result, [head size + 2], is: weighted values, maximum score in base 2, sum
// of weights.
struct Streaming {
  float scale;
  int heads, head_size;
  int most_queries;  // slots with more new tokens are left out
  int splits;        // of each slot's blocks
  float* parts;      // [T, N, splits] parts, with several splits
};

// 16 bytes of a row from `column` on, zeros beyond the head and where not `valid`.
template <bool kPacks, class T>
__device__ __forceinline__ Pack<T> load_chunk(const T* row, int column, int head_size, bool valid) {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) pack.element[i] = from_float<T>(0.0f);
  if constexpr (kPacks) {
    if (valid && column < head_size) pack = load_pack(row + column);
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::kCount; ++i)
      if (valid && column + i < head_size) pack.element[i] = row[column + i];
  }
  return pack;
}

// The softmax of the keys that a group of 8 lanes has seen; a lane has kChunks times 16 bytes of each row.
template <class T, bool kPacks, int kChunks>
class RowStream {
 public:
  static constexpr int kElements = Pack<T>::kCount;
  static constexpr int kKeys = kChunks <= 2 ? 4 : 4 / (kChunks / 2);  // of a group at a time
  static_assert(kKeys >= 1 && kBlockTokens % (kKeys * kWarpRows) == 0);

  __device__ __forceinline__ RowStream(const T* query, float scale, int head_size) : head_size_(head_size) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const Pack<T> pack = load_chunk<kPacks>(query, column(c), head_size, true);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        query_[c][i] = to_float(scaled(pack.element[i], scale)) * kLog2E;
        value_[c][i] = 0.0f;
      }
    }
  }

  // kKeys rows of each group from `first` on; those from `end` on are not there.
  __device__ __forceinline__ void add(const Rows<const T>& k, const Rows<const T>& v, int64_t first, int64_t end) {
    Pack<T> key[kKeys][kChunks], value[kKeys][kChunks];
    bool valid[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int64_t row = first + j * kWarpRows + group();
      valid[j] = row < end;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        key[j][c] = load_chunk<kPacks>(k[row], column(c), head_size_, valid[j]);
        value[j][c] = load_chunk<kPacks>(v[row], column(c), head_size_, valid[j]);
      }
    }
    float score[kKeys];
    float largest = max_;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const float product = dot(key[j]);  // all lanes, valid or not
      score[j] = valid[j] ? product : -INFINITY;
      largest = fmaxf(largest, score[j]);
    }
    accumulate(score, value, largest);
  }

  // Merges the groups of the warp and writes their part.
  __device__ __forceinline__ void store(float* part) {
    float largest = max_;
#pragma unroll
    for (int step = kRowLanes; step < kWarp; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, step));
    const float factor = weight(max_, largest);
    const float sum = group_sum(sum_ * factor);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float merged = group_sum(value_[c][i] * factor);
        if (group() == 0 && column(c) + i < head_size_) part[column(c) + i] = merged;
      }
    if (threadIdx.x % kWarp != 0) return;
    part[head_size_] = largest;
    part[head_size_ + 1] = sum;
  }

  // exp2(score - largest), 0 for no key at all.
  static __device__ __forceinline__ float weight(float score, float largest) {
    return score == -INFINITY ? 0.0f : exp2_fast(score - largest);
  }

 private:
  static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) % kWarp / kRowLanes; }
  static __device__ __forceinline__ int column(int chunk) {
    return (static_cast<int>(threadIdx.x) % kRowLanes + chunk * kRowLanes) * kElements;
  }
  static __device__ __forceinline__ float group_sum(float x) {
#pragma unroll
    for (int step = kRowLanes; step < kWarp; step *= 2) x += __shfl_xor_sync(kFullMask, x, step);
    return x;
  }

  __device__ __forceinline__ float dot(const Pack<T> (&key)[kChunks]) const {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum += query_[c][i] * to_float(key[c].element[i]);
#pragma unroll
    for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kFullMask, sum, step);
    return sum;
  }

  __device__ __forceinline__ void accumulate(const float (&score)[kKeys], const Pack<T> (&value)[kKeys][kChunks],
                                             float largest) {
    const float correction = weight(max_, largest);
    max_ = largest;
    sum_ *= correction;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kElements; ++i) value_[c][i] *= correction;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const float p = weight(score[j], largest);
      sum_ += p;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int i = 0; i < kElements; ++i) value_[c][i] += p * to_float(value[j][c].element[i]);
    }
  }

  int head_size_;
  float query_[kChunks][kElements];
  float value_[kChunks][kElements];
  float max_ = -INFINITY;
  float sum_ = 0.0f;
};

// A part, or element `d` of one.
struct Merged {
  float value, max, sum;
};

__device__ __forceinline__ Merged merge_parts(const float* parts, int count, int head_size, int d) {
  Merged merged{0.0f, -INFINITY, 0.0f};
  for (int i = 0; i < count; ++i) merged.max = fmaxf(merged.max, parts[i * (head_size + 2) + head_size]);
  for (int i = 0; i < count; ++i) {
    const float* part = parts + i * (head_size + 2);
    const float weight = part[head_size] == -INFINITY ? 0.0f : exp2_fast(part[head_size] - merged.max);
    merged.value += weight * part[d];
    merged.sum += weight * part[head_size + 1];
  }
  return merged;
}

// The block's share of the keys of one query, merged into the output or into a part.
template <class T, bool kPacks, int kChunks>
__device__ __forceinline__ void stream_query(const ForwardViews<T>& x, const Streaming& streaming,
                                             const Sequence& sequence, int query, int head, int split) {
  using Stream = RowStream<T, kPacks, kChunks>;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, head_size = streaming.head_size;
  const int64_t token = sequence.first + query;
  const int visible = sequence.past + query + 1;
  const int blocks = (visible + kBlockTokens - 1) / kBlockTokens;
  const int share = (blocks + streaming.splits - 1) / streaming.splits;
  const int end_block = smaller(split * share + share, blocks);
  const Rows<const T> k = head_columns(x.k, head, head_size), v = head_columns(x.v, head, head_size);
  Stream stream(head_columns(x.q, head, head_size)[token], streaming.scale, head_size);
  for (int block = split * share + warp; block < end_block; block += kWarps) {
    const int64_t first = int64_t{sequence.blocks[block]} * kBlockTokens;
    const int rows = smaller(kBlockTokens, visible - block * kBlockTokens);
#pragma unroll 1
    for (int row = 0; row < rows; row += Stream::kKeys * kWarpRows) stream.add(k, v, first + row, first + rows);
  }
  auto* parts = shared_memory<float>();
  stream.store(parts + warp * (head_size + 2));
  __syncthreads();
  float* part = streaming.parts + ((token * streaming.heads + head) * streaming.splits + split) * (head_size + 2);
  for (int d = static_cast<int>(threadIdx.x); d < head_size; d += kAttentionThreads) {
    const Merged merged = merge_parts(parts, kWarps, head_size, d);
    if (streaming.splits == 1) {
      head_columns(x.out, head, head_size)[token][d] = from_float<T>(merged.value / merged.sum);
      continue;
    }
    part[d] = merged.value;
    if (d != 0) continue;
    part[head_size] = merged.max;
    part[head_size + 1] = merged.sum;
  }
  __syncthreads();
}

// A block per slot, split and head.
template <class T, bool kPacks, int kChunks>
__global__ void __launch_bounds__(kAttentionThreads, kChunks == 1 ? 4 : 2)
    paged_attention_stream_kernel(ForwardViews<T> x, PagedSequences slots, Streaming streaming) {
  const int head = static_cast<int>(blockIdx.x) % streaming.heads;
  const int split = static_cast<int>(blockIdx.x) / streaming.heads % streaming.splits;
  const Sequence sequence = slots[static_cast<int>(blockIdx.x) / streaming.heads / streaming.splits];
  if (sequence.queries > streaming.most_queries) return;
  for (int query = 0; query < sequence.queries; ++query)
    stream_query<T, kPacks, kChunks>(x, streaming, sequence, query, head, split);
}

// A block per token and head.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    paged_attention_merge_kernel(Rows<T> out, PagedSequences slots, Streaming streaming) {
  const int64_t token = blockIdx.x / static_cast<unsigned>(streaming.heads);
  if (!slots.own(token)) return;
  const int head = static_cast<int>(blockIdx.x) % streaming.heads, head_size = streaming.head_size;
  const float* parts = streaming.parts + int64_t{blockIdx.x} * streaming.splits * (head_size + 2);
  for (int d = static_cast<int>(threadIdx.x); d < head_size; d += kAttentionThreads) {
    const Merged merged = merge_parts(parts, streaming.splits, head_size, d);
    head_columns(out, head, head_size)[token][d] = from_float<T>(merged.value / merged.sum);
  }
}

// --- Launchers ---

template <class Args>
PagedSequences require_slots(Stream& stream, const Args& args, const Tensor& tokens, const char* name) {
  require_rank(tokens, 2, name);
  require_rank(args.k_cache, 3, "k_cache");
  require_rank(args.block_table, 2, "block_table");
  const int64_t blocks = args.k_cache.shape[0];
  const DeviceKind device = stream.device().kind();
  for (const auto& [cache, cache_name] : {std::pair{&args.k_cache, "k_cache"}, std::pair{&args.v_cache, "v_cache"}}) {
    require_shape(*cache, tokens.dtype, {blocks, kKvBlockTokens, tokens.columns()}, cache_name);
    TERCET_REQUIRE(cache->device == device, "{} is not in the memory of {}", cache_name, device_name(device));
    TERCET_REQUIRE(cache->contiguous(), "{} is not contiguous", cache_name);
  }
  require_rank(args.offsets, 1, "offsets");
  const int64_t slots = args.offsets.rows() - 1;
  require_offsets(stream, args.offsets, slots);
  TERCET_REQUIRE(tokens.rows() == 0 || slots >= 1, "{} tokens of no slot", tokens.rows());
  require_vector(stream, args.lengths, DType::i32, slots, "lengths");
  require_matrix(stream, args.block_table, DType::i32, slots, args.block_table.columns(), "block_table");
  return {elements<const int32_t>(args.offsets), elements<const int32_t>(args.lengths),
          elements<const int32_t>(args.block_table), args.block_table.pitch, narrow<int>(slots)};
}

// The tokens of a cache as rows.
Tensor cache_rows(const Tensor& cache) { return cache.reshaped({cache.shape[0] * kKvBlockTokens, cache.shape[2]}); }

// Parts of each slot's blocks, so that few slots fill a large GPU twice over, each with a block of the cache per warp.
int split_count(int64_t slots, int64_t heads, int64_t blocks_per_slot) {
  constexpr int64_t kBlocksWanted = 528;
  const int64_t useful = std::max<int64_t>(1, blocks_per_slot / kWarps);
  return static_cast<int>(std::clamp<int64_t>(kBlocksWanted / (slots * heads), 1, useful));
}

// Calls body.operator()<kChunks>() with 16-byte chunks per lane.
template <class T, class Body>
void dispatch_chunks(int64_t head_size, Body&& body) {
  const int64_t chunks = ceil_div<int64_t>(head_size, kRowLanes * Pack<T>::kCount);
  TERCET_REQUIRE(head_size <= kMaxHeadSize, "a head size of {}, attention on a GPU takes up to {}", head_size,
                 kMaxHeadSize);
  if (chunks <= 1) return body.template operator()<1>();
  if (chunks <= 2) return body.template operator()<2>();
  if (chunks <= 4) return body.template operator()<4>();
  if constexpr (sizeof(T) == 4) body.template operator()<8>();
}

template <class T>
void queue_streams(Stream& stream, const ForwardProblem& problem, const PagedSequences& slots, int64_t splits,
                   bool every_slot) {
  const int64_t tokens = problem.q.rows(), heads = problem.heads, head_size = problem.q.columns() / heads;
  Streaming streaming{static_cast<float>(problem.scale), narrow<int>(heads),  narrow<int>(head_size),
                      every_slot ? INT32_MAX : 1,        narrow<int>(splits), nullptr};
  if (splits > 1)
    streaming.parts = static_cast<float*>(static_cast<GpuStream&>(stream).workspace(
        sizeof(float) * static_cast<size_t>(tokens * heads * splits * (head_size + 2))));
  const ForwardViews<T> views{rows_of<const T>(problem.q),
                              rows_of<const T>(problem.k),
                              rows_of<const T>(problem.v),
                              rows_of<T>(problem.out),
                              {}};
  const bool packs = rows_align({&problem.q, &problem.k, &problem.v}) && head_size % Pack<T>::kCount == 0;
  const auto shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(head_size + 2);
  dispatch_bool(packs, [&]<bool kPacks>() {
    dispatch_chunks<T>(head_size, [&]<int kChunks>() {
      launch(stream, problem.name, attention_shape(slots.count * splits, heads, shared_bytes),
             paged_attention_stream_kernel<T, kPacks, kChunks>, views, slots, streaming);
    });
  });
  if (splits > 1)
    launch(stream, "paged_attention (merge)", attention_shape(tokens, heads, 0), paged_attention_merge_kernel<T>,
           rows_of<T>(problem.out), slots, streaming);
}

}  // namespace

void kv_cache_append(Stream& stream, const KvCacheAppendArgs& args) {
  const PagedSequences slots = require_slots(stream, args, args.k, "k");
  const int64_t tokens = args.k.rows(), columns = args.k.columns();
  require_matrix(stream, args.k, args.k.dtype, tokens, columns, "k");
  require_matrix(stream, args.v, args.k.dtype, tokens, columns, "v");
  dispatch_element(args.k.dtype, [&]<class T>() {
    const Tensor k_cache = cache_rows(args.k_cache), v_cache = cache_rows(args.v_cache);
    const CacheViews<T> views{rows_of<const T>(args.k), rows_of<const T>(args.v), rows_of<T>(k_cache),
                              rows_of<T>(v_cache)};
    const bool packs = rows_align({&args.k, &args.v, &k_cache, &v_cache}) && columns % Pack<T>::kCount == 0;
    dispatch_bool(packs, [&]<bool kPacks>() {
      launch(stream, "kv_cache_append", {.grid_x = grid_of(tokens), .threads = kAppendThreads},
             kv_cache_append_kernel<T, kPacks>, views, slots, columns);
    });
  });
}

void paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  const PagedSequences slots = require_slots(stream, args, args.q, "q");
  const int64_t tokens = args.q.rows(), hidden = args.q.columns();
  require_matrix(stream, args.q, args.q.dtype, tokens, hidden, "q");
  require_matrix(stream, args.out, args.q.dtype, tokens, hidden, "out");
  TERCET_REQUIRE(args.heads >= 1 && hidden % args.heads == 0, "{} heads of a hidden size of {}", args.heads, hidden);
  dispatch_element(args.q.dtype, [&]<class T>() {
    if (tokens == 0) return;
    const ForwardProblem problem{
        "paged_attention", args.q,    cache_rows(args.k_cache), cache_rows(args.v_cache), args.out, {},
        args.heads,        args.scale};
    // At most a token per slot on average: no prompts that are worth tiles.
    const bool decoding = tokens <= slots.count;
    const int splits = decoding ? split_count(slots.count, args.heads, args.block_table.columns()) : 1;
    queue_streams<T>(stream, problem, slots, splits, decoding);
    if (!decoding) queue_forward<T>(stream, problem, slots);
  });
}

}  // namespace tercet::gpu
