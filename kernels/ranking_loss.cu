// Ranking losses on the GPU.
//
// Layout  one score per answer, or per token of ragged answers.
// Floor   nothing beside a launch: a few thousand scores at most.
// Design  a thread per pair, or a warp per pair of ragged answers; all arithmetic is fp64, as on the CPU, because a
//         margin of 100 has a loss of 4e-44. A score that is held gets its slopes added over the warp in a fixed order.
#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr int kPairThreads = 128;

__device__ __forceinline__ double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

// d softplus(x) / dx, without overflow.
__device__ __forceinline__ double sigmoid(double x) {
  const double e = exp(-fabs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}

template <class T>
__device__ __forceinline__ T rounded(double x) {
  return from_float<T>(static_cast<float>(x));
}

template <class T>
__global__ void pair_kernel(const T* scores, float* loss, T* d_scores, double scale, int64_t pairs) {
  const int64_t p = int64_t{blockIdx.x} * kPairThreads + threadIdx.x;
  if (p >= pairs) return;
  const double margin = static_cast<double>(to_float(scores[2 * p + 1])) - static_cast<double>(to_float(scores[2 * p]));
  loss[p] = static_cast<float>(softplus(margin));
  if (d_scores == nullptr) return;
  const double slope = scale * sigmoid(margin);
  d_scores[2 * p] = rounded<T>(-slope);
  d_scores[2 * p + 1] = rounded<T>(slope);
}

// One answer of a pair: its scores, and the slopes that reach them.
template <class T>
struct Answer {
  const T* scores;
  T* d_scores;  // or nullptr
  int32_t length;
  double held = 0;  // the last score's slopes

  // The score at position i, the last one's beyond the end.
  __device__ __forceinline__ double score(int32_t i) const {
    return static_cast<double>(to_float(scores[min(i, length - 1)]));
  }
  __device__ __forceinline__ void add(int32_t i, double slope) {
    if (i >= length - 1)
      held += slope;
    else if (d_scores != nullptr)
      d_scores[i] = rounded<T>(slope);
  }
  __device__ __forceinline__ void finish(int lane) {
    const double sum = warp_sum(held);
    if (lane == 0 && d_scores != nullptr) d_scores[length - 1] = rounded<T>(sum);
  }
};

// A warp per pair; lanes take the positions in turn.
template <class T>
__global__ void token_pair_kernel(const T* scores, const int32_t* offsets, const int32_t* first_difference, float* loss,
                                  T* d_scores, double scale, int64_t pairs) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t pair = int64_t{blockIdx.x} * (kPairThreads / kWarp) + threadIdx.x / kWarp;
  if (pair >= pairs) return;
  const int32_t* bounds = offsets + 2 * pair;
  const auto answer = [&](int side) {
    return Answer<T>{scores + bounds[side], d_scores == nullptr ? nullptr : d_scores + bounds[side],
                     bounds[side + 1] - bounds[side]};
  };
  Answer<T> chosen = answer(0), rejected = answer(1);
  const int32_t first = first_difference[pair];
  const int32_t end = max(chosen.length, rejected.length);
  const double count = end - first;
  double sum = 0;
  for (int32_t i = lane; i < end; i += kWarp) {
    const double margin = rejected.score(i) - chosen.score(i);
    const double slope = i < first ? 0 : scale * sigmoid(margin) / count;
    if (i >= first) sum += softplus(margin);
    chosen.add(i, -slope);
    rejected.add(i, slope);
  }
  chosen.finish(lane);
  rejected.finish(lane);
  sum = warp_sum(sum);
  if (lane == 0) loss[pair] = static_cast<float>(sum / count);
}

}  // namespace

void ranking_loss(Stream& stream, const RankingLossArgs& args) {
  require_rank(args.scores, 1, "scores");
  require_rank(args.loss, 1, "loss");
  const int64_t pairs = args.loss.rows();
  const DType dtype = args.scores.dtype;
  require_vector(stream, args.scores, dtype, 2 * pairs, "scores");
  require_vector(stream, args.loss, DType::f32, pairs, "loss");
  if (args.d_scores.defined()) require_vector(stream, args.d_scores, dtype, 2 * pairs, "d_scores");
  const LaunchShape shape = {.grid_x = grid_of(ceil_div<int64_t>(pairs, kPairThreads)), .threads = kPairThreads};
  dispatch_element(dtype, [&]<class T>() {
    launch(stream, "ranking_loss", shape, pair_kernel<T>, elements<const T>(args.scores), elements<float>(args.loss),
           elements<T>(args.d_scores), args.scale, pairs);
  });
}

void token_ranking_loss(Stream& stream, const TokenRankingLossArgs& args) {
  require_rank(args.scores, 1, "scores");
  require_rank(args.loss, 1, "loss");
  const int64_t pairs = args.loss.rows();
  const DType dtype = args.scores.dtype;
  require_vector(stream, args.scores, dtype, args.scores.rows(), "scores");
  require_vector(stream, args.loss, DType::f32, pairs, "loss");
  require_vector(stream, args.first_difference, DType::i32, pairs, "first_difference");
  if (args.d_scores.defined()) require_vector(stream, args.d_scores, dtype, args.scores.rows(), "d_scores");
  require_offsets(stream, args.offsets, 2 * pairs);
  const LaunchShape shape = {.grid_x = grid_of(ceil_div<int64_t>(pairs, kPairThreads / kWarp)),
                             .threads = kPairThreads};
  dispatch_element(dtype, [&]<class T>() {
    launch(stream, "token_ranking_loss", shape, token_pair_kernel<T>, elements<const T>(args.scores),
           elements<const int32_t>(args.offsets), elements<const int32_t>(args.first_difference),
           elements<float>(args.loss), elements<T>(args.d_scores), args.scale, pairs);
  });
}

}  // namespace tercet::gpu
