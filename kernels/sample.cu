// Sampling of the next token on the GPU.
//
// Layout   logits [S, V] of any pitch; workspace: what a row may give, and the results of parts of rows.
// Floor    2 bytes per bf16 logit, read once; about 40 instructions of random bits and two logarithms per logit.
// Draw     a block per part of 8192 tokens of a row finds the largest z + Gumbel noise, the largest logit and the sum
//          of exponentials in one pass; a second kernel joins a row's parts. Ties go to the smallest index: the draw
//          depends on neither parts nor threads.
// Limits   top-k and top-p look for the key of the last token kept among the order-preserving integers of the logits: a
//          block per row decides two bits per pass, by the masses (1, or exp in fp64 sums) of the keys that share the
//          bits decided so far. Nothing is sorted; the row comes from a cache after its first pass. Of the tokens
//          equal to the limit the first ones are kept, by the index of the last.
// Sources  selection of a quantile by radix passes: the "radix select" of GPU top-k; Gumbel-max: sample.h.
#include "kernels/gpu_ops.h"
#include "kernels/gpu_softmax.h"

namespace tercet::gpu {
namespace {

constexpr int64_t kPart = 8192;  // tokens of a block of the draw
constexpr int kJoinThreads = 128;

// Which tokens a row may give: those whose key is above `key`, and those equal to it up to index `last`.
struct Kept {
  uint32_t key;
  int32_t last;

  __device__ __forceinline__ bool keeps(uint32_t other, int64_t index) const {
    return other > key || (other == key && index <= last);
  }
};
constexpr Kept kAll = {0, INT32_MAX};

// Integers in the order of the floats that they stand for; both zeros have one key. No number has key 0.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float number_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// The upper bits of a key that tell two elements of a type apart; below them keys are all zeros, or all ones when
// negative.
template <class T>
inline constexpr int kKeyBits = kDType<T> == DType::f32 ? 32 : (kDType<T> == DType::bf16 ? 16 : 20);

// --- Limits of top-k and top-p ---

template <class T>
struct LogitRow {
  const T* logits;
  int64_t columns;

  // Calls body(x) for this thread's logits.
  template <class Body>
  __device__ __forceinline__ void for_each(Body body) const {
    for_runs(logits, columns, [&](int64_t first, int64_t count) {
      float x[Pack<T>::kCount];
      load_run<true>(logits + first, count, x);
#pragma unroll
      for (int j = 0; j < Pack<T>::kCount; ++j)
        if (j < count) body(x[j]);
    });
  }
};

// Shared memory of share_sums.
struct SumsMemory {
  double partial[3 * kWarp];
  double result[3];
};

// Every thread gets the block's sums. Two calls in a row may use the same memory.
template <int kSums>
__device__ __forceinline__ void share_sums(double (&x)[kSums], SumsMemory& shared) {
  block_sums(x, shared.partial);
  if (threadIdx.x == 0)
    for (int i = 0; i < kSums; ++i) shared.result[i] = x[i];
  __syncthreads();
  for (int i = 0; i < kSums; ++i) x[i] = shared.result[i];
}

struct Limit {
  uint32_t key;
  double above;  // mass of the larger keys
};

// The largest key such that the mass of the keys from it on reaches `target`; keys up to `floor` do not count.
template <class T, class Weight>
__device__ __forceinline__ Limit find_limit(const LogitRow<T>& row, uint32_t floor, double target, Weight weight,
                                            SumsMemory& shared) {
  Limit limit = {0, 0};
  for (int shift = 30; shift >= 32 - kKeyBits<T>; shift -= 2) {
    double masses[3] = {};  // of the next two bits 1, 2, 3
    row.for_each([&](float x) {
      const uint32_t key = key_of(x);
      const uint32_t bits = (key ^ limit.key) >> shift;
      if (bits == 0 || bits > 3 || key <= floor) return;
      const double mass = weight(x);
#pragma unroll
      for (uint32_t i = 0; i < 3; ++i) masses[i] += bits == i + 1 ? mass : 0;
    });
    share_sums(masses, shared);
    uint32_t bits = 3;
#pragma unroll
    for (int i = 2; i >= 0; --i) {
      if (bits != static_cast<uint32_t>(i) + 1 || limit.above + masses[i] >= target) continue;
      limit.above += masses[i];
      --bits;
    }
    limit.key |= bits << shift;
  }
  if (kKeyBits<T> < 32 && (limit.key >> 31) == 0) limit.key |= 0xffffffffu >> kKeyBits<T> % 32;
  return limit;
}

// How many tokens of equal weight reach `missing`, from 1 to `most`.
__device__ __forceinline__ double ties_needed(double missing, double weight, double most) {
  const double ties = ceil(missing / weight);
  return ties >= 1 ? (ties < most ? ties : most) : 1;
}

// The index of token number `ties` (from 1) among those with this key; the row's length when there are fewer.
template <class T>
__device__ __forceinline__ int64_t index_of_tie(const LogitRow<T>& row, uint32_t key, double ties) {
  constexpr int kAhead = 4;  // steps of a warp whose logits are loaded together
  __shared__ int counts[32];
  __shared__ int64_t found;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t part = (row.columns + blockDim.x - 1) / blockDim.x * kWarp;
  const int64_t begin = min(row.columns, warp * part);
  const int64_t end = min(row.columns, begin + part);
  int count = 0;
  for (int64_t i = begin + lane; i < end; i += kWarp) count += key_of(to_float(row.logits[i])) == key ? 1 : 0;
  count = __reduce_add_sync(kFullMask, count);
  if (lane == 0) counts[warp] = count;
  if (threadIdx.x == 0) found = row.columns;
  __syncthreads();
  double before = 0;
  for (int w = 0; w < warp; ++w) before += counts[w];
  const bool here = before < ties && ties <= before + count;
  for (int64_t first = begin; here && first < end && before < ties; first += kAhead * kWarp) {
    bool equal[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t i = first + a * kWarp + lane;
      equal[a] = i < end && key_of(to_float(row.logits[i])) == key;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const unsigned votes = __ballot_sync(kFullMask, equal[a]);
      if (equal[a] && before + __popc(votes & ((2u << lane) - 1)) == ties) found = first + a * kWarp + lane;
      before += __popc(votes);
    }
  }
  __syncthreads();
  return found;
}

struct Restriction {
  int64_t top_k;  // 0: all
  double top_p;   // 1: all
  float scale;    // log2(e) / temperature
};

template <class T>
__device__ __forceinline__ Kept select_tokens(const LogitRow<T>& row, const Restriction& r, float largest,
                                              SumsMemory& shared) {
  const auto one = [](float) { return 1.0; };
  const auto weight = [&](float x) { return static_cast<double>(exp2_fast((x - largest) * r.scale)); };
  Limit limit = {0, 0};
  double ties = 0;  // tokens equal to the limit that are kept
  if (r.top_k > 0 && r.top_k < row.columns) {
    limit = find_limit(row, 0, static_cast<double>(r.top_k), one, shared);
    ties = static_cast<double>(r.top_k) - limit.above;
  }
  if (r.top_p < 1) {
    const uint32_t floor = limit.key;
    double above[1] = {0};
    row.for_each([&](float x) { above[0] += key_of(x) > floor ? weight(x) : 0; });
    share_sums(above, shared);
    const double floor_weight = ties > 0 ? weight(number_of(floor)) : 0;
    const double target = r.top_p * (above[0] + ties * floor_weight);
    if (above[0] < target) {
      ties = ties_needed(target - above[0], floor_weight, ties);
    } else {
      limit = find_limit(row, floor, target, weight, shared);
      ties = ties_needed(target - limit.above, weight(number_of(limit.key)), static_cast<double>(row.columns));
    }
  }
  if (limit.key == 0) return kAll;
  return {limit.key, static_cast<int32_t>(index_of_tie(row, limit.key, ties))};
}

// A block per row.
template <class T>
__global__ void __launch_bounds__(1024)
    select_kernel(Rows<const T> logits, int64_t columns, Restriction restriction, Kept* kept) {
  __shared__ float floats[33];
  __shared__ SumsMemory sums;
  const LogitRow<T> row = {logits[blockIdx.x], columns};
  float largest = -INFINITY, bad = 0;
  row.for_each([&](float x) {
    largest = fmaxf(largest, x);
    if (isnan(x)) bad = 1;
  });
  largest = block_max(largest, floats);
  bad = block_max(bad, floats);
  const Kept result = bad > 0 ? kAll : select_tokens(row, restriction, largest, sums);
  if (threadIdx.x == 0) kept[blockIdx.x] = result;
}

// --- The draw ---

// -log(-log u) for u = (k + 1/2) / 2^32. Near u = 1 the distance to 1 is taken from the bits: u itself would round.
__device__ __forceinline__ float gumbel(uint32_t k) {
  const float exponential = k < 0x80000000u ? -logf((static_cast<float>(k) + 0.5f) * 0x1p-32f)
                                            : -log1pf((static_cast<float>(~k) + 0.5f) * -0x1p-32f);
  return -logf(exponential);
}

// A candidate for the draw: the larger value wins, then the smaller index.
struct Candidate {
  float value = -INFINITY;
  int32_t index = INT32_MAX;

  __device__ __forceinline__ void challenge(float other_value, int32_t other_index) {
    if (other_value > value || (other_value == value && other_index < index)) {
      value = other_value;
      index = other_index;
    }
  }
};

// The block's winner, in thread 0.
__device__ __forceinline__ Candidate block_winner(Candidate best) {
  __shared__ float values[32];
  __shared__ int32_t indices[32];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(kFullMask, best.value, step);
    best.challenge(value, __shfl_xor_sync(kFullMask, best.index, step));
  }
  if (lane == 0) {
    values[warp] = best.value;
    indices[warp] = best.index;
  }
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) best.challenge(values[w], indices[w]);
  return best;
}

struct DrawnPart {
  Candidate best;
  float max, sum;  // SoftmaxSums
};

struct DrawRows {
  const int64_t* samples;
  const int32_t* positions;
  const Kept* kept;  // [rows], or nullptr
  uint64_t key;
  float inverse_temperature;  // 1 when greedy
};

// Lets the kept tokens [first, first + kPack) of a row with finite temperature challenge `best`.
template <int kPack>
__device__ __forceinline__ void draw_run(const DrawRows& rows, int64_t row, int64_t first, int64_t count,
                                         const float (&x)[kPack], const Kept& kept, Candidate& best) {
  bool keep[kPack];
  bool any = false;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    keep[j] = j < count && kept.keeps(key_of(x[j]), first + j);
    any = any || keep[j];
  }
  if (!any) return;
  const auto sample = static_cast<uint64_t>(rows.samples[row]);
  const auto position = static_cast<uint32_t>(rows.positions[row]);
#pragma unroll
  for (int j = 0; j < kPack; j += 4) {
    const RandomWords random = random_words(rows.key, sample, position, static_cast<uint32_t>((first + j) / 4));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (keep[j + i])
        best.challenge(x[j + i] * rows.inverse_temperature + gumbel(random.word[i]),
                       static_cast<int32_t>(first) + j + i);
  }
}

// A block per part of a row; runs start at multiples of four tokens, as the random numbers do.
template <class T, bool kGreedy, bool kPacks>
__global__ void draw_kernel(Rows<const T> logits, DrawRows rows, int64_t parts, int64_t columns, DrawnPart* drawn) {
  constexpr int kPack = Pack<T>::kCount;
  __shared__ float shared[33];
  const int64_t row = blockIdx.x / parts;
  const int64_t begin = (blockIdx.x - row * parts) * kPart;
  const int64_t end = min(columns, begin + kPart);
  const T* z = logits[row];
  const Kept kept = rows.kept == nullptr ? kAll : rows.kept[row];
  SoftmaxSums sums(rows.inverse_temperature);
  Candidate best;
  for (int64_t first = begin + int64_t{threadIdx.x} * kPack; first < end; first += int64_t{blockDim.x} * kPack) {
    float x[kPack];
    load_run<kPacks>(z + first, end - first, x, -INFINITY);
    sums.add(x);
    if constexpr (kGreedy) {
#pragma unroll
      for (int j = 0; j < kPack; ++j)
        if (x[j] > best.value) best = {x[j], static_cast<int32_t>(first) + j};
    } else {
      draw_run(rows, row, first, end - first, x, kept, best);
    }
  }
  sums.join_block(shared);
  best = block_winner(best);
  if (threadIdx.x == 0) drawn[blockIdx.x] = {best, sums.max, sums.sum};
}

// A thread per row joins its parts in order.
template <class T>
__global__ void join_kernel(Rows<const T> logits, const DrawnPart* drawn, int64_t parts, float inverse_temperature,
                            int32_t* ids, float* log_prob, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (row >= rows) return;
  SoftmaxSums sums(inverse_temperature);
  Candidate best;
  for (int64_t p = row * parts; p < (row + 1) * parts; ++p) {
    const DrawnPart part = drawn[p];
    best.challenge(part.best.value, part.best.index);
    SoftmaxSums other(inverse_temperature);
    other.max = part.max;
    other.sum = part.sum;
    const float max = fmaxf(sums.max, other.max);
    sums.rescale(max);
    other.rescale(max);
    sums.sum += other.sum;
  }
  const int32_t id = best.index == INT32_MAX ? 0 : best.index;
  ids[row] = id;
  log_prob[row] = (to_float(logits[row][id]) - sums.max) * inverse_temperature - logf(sums.sum);
}

// --- Launchers ---

unsigned row_threads(int64_t columns, unsigned most) {
  if (columns <= 512) return 32;
  return columns <= 4096 ? 128 : most;
}

template <class T>
void sample_rows(Stream& stream, const SampleArgs& args) {
  const int64_t rows = args.logits.rows(), columns = args.logits.columns();
  const int64_t parts = ceil_div(columns, kPart);
  const bool greedy = args.temperature == 0;
  const bool restricted = args.scratch.defined() && !greedy;
  const size_t part_bytes = static_cast<size_t>(rows * parts) * sizeof(DrawnPart);
  const size_t kept_bytes = restricted ? static_cast<size_t>(rows) * sizeof(Kept) : 0;
  void* workspace = static_cast<GpuStream&>(stream).workspace(part_bytes + kept_bytes);
  auto* drawn = static_cast<DrawnPart*>(workspace);
  auto* kept = restricted ? reinterpret_cast<Kept*>(drawn + rows * parts) : nullptr;
  const auto inverse_temperature = static_cast<float>(greedy ? 1 : 1 / args.temperature);
  const auto logits = rows_of<const T>(args.logits);
  if (restricted)
    launch(stream, "sample limits", {.grid_x = grid_of(rows), .threads = row_threads(columns, 1024)}, select_kernel<T>,
           logits, columns, Restriction{args.top_k, args.top_p, inverse_temperature * kLog2E}, kept);
  const DrawRows draw = {.samples = elements<const int64_t>(args.samples),
                         .positions = elements<const int32_t>(args.positions),
                         .kept = kept,
                         .key = args.key,
                         .inverse_temperature = inverse_temperature};
  const LaunchShape shape = {.grid_x = grid_of(rows * parts), .threads = row_threads(columns, 256)};
  dispatch_bool(greedy, [&]<bool kGreedy>() {
    dispatch_bool(rows_align({&args.logits}), [&]<bool kPacks>() {
      launch(stream, "sample", shape, draw_kernel<T, kGreedy, kPacks>, logits, draw, parts, columns, drawn);
    });
  });
  launch(stream, "sample join", {.grid_x = grid_of(ceil_div<int64_t>(rows, kJoinThreads)), .threads = kJoinThreads},
         join_kernel<T>, logits, drawn, parts, inverse_temperature, elements<int32_t>(args.ids),
         elements<float>(args.log_prob), rows);
}

}  // namespace

void sample(Stream& stream, const SampleArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const int64_t rows = args.logits.rows(), columns = args.logits.columns();
  require_matrix(stream, args.logits, dtype, rows, columns, "logits");
  require_vector(stream, args.samples, DType::i64, rows, "samples");
  require_vector(stream, args.positions, DType::i32, rows, "positions");
  require_vector(stream, args.ids, DType::i32, rows, "ids");
  require_vector(stream, args.log_prob, DType::f32, rows, "log_prob");
  const bool restricted = args.top_k > 0 || args.top_p < 1;
  TERCET_REQUIRE(args.scratch.defined() == restricted, "scratch goes with top_k and top_p");
  if (restricted) require_matrix(stream, args.scratch, dtype, rows, columns, "scratch");
  TERCET_REQUIRE(args.temperature >= 0, "a temperature of {}", args.temperature);
  TERCET_REQUIRE(args.top_k >= 0, "a top-k of {}", args.top_k);
  TERCET_REQUIRE(args.top_p > 0 && args.top_p <= 1, "a top-p of {}", args.top_p);
  TERCET_REQUIRE(rows == 0 || columns > 0, "an empty vocabulary");
  TERCET_REQUIRE(columns <= INT32_MAX, "a vocabulary of {} tokens", columns);
  dispatch_element(dtype, [&]<class T>() {
    if (rows > 0) sample_rows<T>(stream, args);
  });
}

}  // namespace tercet::gpu
