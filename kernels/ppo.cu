// The arithmetic of PPO on the GPU.
//
// Layout  R response tokens, ragged by offsets; fp32 (all of them are statistics), sums fp64.
// Floor   4 bytes per value read and written: nothing beside a launch.
// Design  all arithmetic is fp64 with one rounding at the end, as on the CPU. GAE is a scan of affine maps, a warp per
//         response, 32 tokens at a time from the last one back. Sums: blocks of a fixed number of tokens write partial
//         sums, one more block adds them in order.
// Sources scans of affine maps: G. Blelloch, "Prefix sums and their applications", 1990.
#include <cmath>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"

namespace tercet::gpu {
namespace {

constexpr double kMaxLogRatio = 20;
constexpr int kTokenThreads = 256;  // of a block, one token each
constexpr int kPolicySums = 8;
constexpr int kValueSums = 4;

__device__ __forceinline__ double clip(double x, double low, double high) {
  return x < low ? low : (x > high ? high : x);
}

// max(old, candidate) that a NaN on either side makes NaN.
__device__ __forceinline__ double max_or_nan(double old, double candidate) {
  return isnan(candidate) || candidate > old ? candidate : old;
}

struct Rewards {
  const float* log_prob;
  const float* reference_log_prob;
  const float* scores;
  const uint8_t* terminated;
  const int32_t* offsets;
  float* rewards;
  double kl_coef, score_mean, score_sd, reward_clip, missing_eos_penalty;
};

// A block of one warp per response.
__global__ void reward_shaping_kernel(Rewards r) {
  const int64_t b = blockIdx.x;
  const int32_t end = r.offsets[b + 1];
  double score = (static_cast<double>(r.scores[b]) - r.score_mean) / r.score_sd;
  if (r.reward_clip > 0) score = clip(score, -r.reward_clip, r.reward_clip);
  if (r.terminated[b] == 0) score -= r.missing_eos_penalty;
  for (int32_t t = r.offsets[b] + static_cast<int32_t>(threadIdx.x); t < end; t += kWarp) {
    const double difference = static_cast<double>(r.log_prob[t]) - static_cast<double>(r.reference_log_prob[t]);
    const double penalty = -r.kl_coef * difference;
    r.rewards[t] = static_cast<float>(t + 1 == end ? penalty + score : penalty);
  }
}

// advantage = delta + decay advantage_of_the_next over 32 tokens, lane 0 the last of them, `next` the advantage after
// it.
__device__ __forceinline__ double scan_advantages(double delta, double decay, double next, int lane) {
  double factor = decay;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const double later_delta = __shfl_up_sync(kFullMask, delta, step);
    const double later_factor = __shfl_up_sync(kFullMask, factor, step);
    if (lane < step) continue;
    delta += factor * later_delta;
    factor *= later_factor;
  }
  return delta + factor * next;
}

// A block of one warp per response.
__global__ void gae_kernel(const float* rewards, const float* values, const int32_t* offsets, float* advantages,
                           float* returns, double gamma, double lambda) {
  const int lane = static_cast<int>(threadIdx.x);
  const int32_t begin = offsets[blockIdx.x];
  const int32_t end = offsets[blockIdx.x + 1];
  double next = 0;
  for (int32_t last = end - 1; last >= begin; last -= kWarp) {
    const int32_t t = last - lane;
    const bool valid = t >= begin;
    const double value = valid ? values[t] : 0;
    const double next_value = valid && t + 1 < end ? values[t + 1] : 0;
    const double delta = valid ? static_cast<double>(rewards[t]) + gamma * next_value - value : 0;
    const double advantage = scan_advantages(delta, gamma * lambda, next, lane);
    if (valid) {
      advantages[t] = static_cast<float>(advantage);
      returns[t] = static_cast<float>(advantage + value);
    }
    next = __shfl_sync(kFullMask, advantage, kWarp - 1);
  }
}

// partial[i][block] = sums[i] of the block's threads.
template <int kSums>
__device__ __forceinline__ void store_sums(double (&sums)[kSums], double* partial) {
  __shared__ double shared[kSums * kWarp];
  block_sums(sums, shared);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) partial[int64_t{i} * gridDim.x + blockIdx.x] = sums[i];
}

// A block per sum: total[i] (+)= the blocks' partial sums.
template <bool kAccumulate>
__global__ void add_blocks_kernel(const double* partial, int64_t blocks, double* total) {
  __shared__ double shared[kWarp];
  const int64_t i = blockIdx.x;
  double sum[1] = {0};
  for (int64_t b = threadIdx.x; b < blocks; b += kTokenThreads) sum[0] += partial[i * blocks + b];
  block_sums(sum, shared);
  if (threadIdx.x == 0) total[i] = kAccumulate ? total[i] + sum[0] : sum[0];
}

__global__ void centered_sums_kernel(const float* x, double* partial, double center, int64_t n) {
  const int64_t t = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  const double difference = t < n ? static_cast<double>(x[t]) - center : 0;
  double sums[2] = {difference, difference * difference};
  store_sums(sums, partial);
}

__global__ void whiten_kernel(float* x, double mean, double scale, int64_t n) {
  const int64_t t = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (t < n) x[t] = static_cast<float>((static_cast<double>(x[t]) - mean) * scale);
}

struct PolicyTokens {
  const float* log_prob;
  const float* old_log_prob;
  const float* advantages;
  const float* entropy;
  float* d_log_prob;
  float* d_entropy;  // nullptr like entropy
  double clip_range, entropy_coef, scale;
};

// Writes the gradient of one token, adds its terms to sums and returns |ratio - 1|.
__device__ __forceinline__ double policy_token(const PolicyTokens& p, int64_t t, double (&sums)[kPolicySums]) {
  const double difference = static_cast<double>(p.log_prob[t]) - static_cast<double>(p.old_log_prob[t]);
  const double ratio = exp(clip(difference, -kMaxLogRatio, kMaxLogRatio));
  const double advantage = p.advantages[t];
  const double plain = -advantage * ratio;
  const double clipped = -advantage * clip(ratio, 1 - p.clip_range, 1 + p.clip_range);
  const bool clip_active = clipped > plain;
  const bool constant = clip_active || fabs(difference) > kMaxLogRatio;
  p.d_log_prob[t] = static_cast<float>(constant ? 0 : p.scale * plain);
  if (p.d_entropy != nullptr) p.d_entropy[t] = static_cast<float>(-p.scale * p.entropy_coef);
  sums[0] = clip_active ? clipped : plain;
  sums[1] = clip_active && ratio < 1 ? 1 : 0;
  sums[2] = clip_active && !(ratio < 1) ? 1 : 0;
  sums[3] = 0.5 * difference * difference;
  sums[4] = ratio;
  sums[5] = ratio * ratio;
  sums[6] = expm1(difference) - difference;
  sums[7] = p.entropy != nullptr ? p.entropy[t] : 0;
  return fabs(ratio - 1);
}

// The block's largest deviation, a NaN if there is one, in every thread of the first warp.
__device__ __forceinline__ double block_deviation(double x) {
  __shared__ double shared[kTokenThreads / kWarp];
  constexpr int kWarps = kTokenThreads / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = max_or_nan(x, __shfl_xor_sync(kFullMask, x, step));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < kWarps; ++w) x = max_or_nan(x, shared[w]);
  return x;
}

// partial holds kPolicySums sums and the deviation of every block.
__global__ void policy_kernel(PolicyTokens p, double* partial, int64_t n) {
  const int64_t t = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  double sums[kPolicySums] = {};
  const double deviation = block_deviation(t < n ? policy_token(p, t, sums) : 0);
  if (threadIdx.x == 0) partial[int64_t{kPolicySums} * gridDim.x + blockIdx.x] = deviation;
  store_sums(sums, partial);
}

// deviation[0] = max(deviation[0], the blocks' deviations)
__global__ void add_deviations_kernel(const double* partial, int64_t blocks, double* deviation) {
  double x = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kTokenThreads) x = max_or_nan(x, partial[b]);
  x = block_deviation(x);
  if (threadIdx.x == 0) *deviation = max_or_nan(*deviation, x);
}

struct ValueTokens {
  const float* values;
  const float* old_values;
  const float* returns;
  double clip_range, scale;
};

template <class G>
__global__ void value_kernel(ValueTokens v, G* d_values, double* partial, int64_t n) {
  const int64_t t = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  double sums[kValueSums] = {};
  if (t < n) {
    const double value = v.values[t];
    const double old_value = v.old_values[t];
    const double error = value - static_cast<double>(v.returns[t]);
    const double clipped_error =
        clip(value, old_value - v.clip_range, old_value + v.clip_range) - static_cast<double>(v.returns[t]);
    const bool clip_active = clipped_error * clipped_error > error * error;
    d_values[t] = from_float<G>(static_cast<float>(clip_active ? 0 : v.scale * error));
    sums[0] = 0.5 * (clip_active ? clipped_error * clipped_error : error * error);
    sums[1] = clip_active ? 1 : 0;
    sums[2] = value;
    sums[3] = error * error;
  }
  store_sums(sums, partial);
}

// A vector [R] of fp32, the one dtype of these ops on a GPU.
void require_tokens(Stream& stream, const Tensor& tensor, int64_t tokens, const char* name) {
  require_vector(stream, tensor, DType::f32, tokens, name);
}

LaunchShape token_shape(int64_t tokens) {
  return {.grid_x = grid_of(ceil_div<int64_t>(tokens, kTokenThreads)), .threads = kTokenThreads};
}

// Memory for `sums` fp64 numbers per block.
double* partial_sums(Stream& stream, int64_t tokens, int sums) {
  const int64_t count = sums * ceil_div<int64_t>(tokens, kTokenThreads);
  return static_cast<double*>(static_cast<GpuStream&>(stream).workspace(sizeof(double) * static_cast<size_t>(count)));
}

}  // namespace

void reward_shaping(Stream& stream, const RewardShapingArgs& args) {
  require_rank(args.log_prob, 1, "log_prob");
  require_rank(args.scores, 1, "scores");
  const int64_t tokens = args.log_prob.rows(), responses = args.scores.rows();
  require_tokens(stream, args.log_prob, tokens, "log_prob");
  require_tokens(stream, args.reference_log_prob, tokens, "reference_log_prob");
  require_tokens(stream, args.rewards, tokens, "rewards");
  require_tokens(stream, args.scores, responses, "scores");
  require_vector(stream, args.terminated, DType::u8, responses, "terminated");
  require_offsets(stream, args.offsets, responses);
  TERCET_REQUIRE(args.score_sd > 0, "a standard deviation of scores of {}", args.score_sd);
  TERCET_REQUIRE(args.reward_clip >= 0, "a reward clip of {}", args.reward_clip);
  const Rewards rewards = {.log_prob = elements<const float>(args.log_prob),
                           .reference_log_prob = elements<const float>(args.reference_log_prob),
                           .scores = elements<const float>(args.scores),
                           .terminated = elements<const uint8_t>(args.terminated),
                           .offsets = elements<const int32_t>(args.offsets),
                           .rewards = elements<float>(args.rewards),
                           .kl_coef = args.kl_coef,
                           .score_mean = args.score_mean,
                           .score_sd = args.score_sd,
                           .reward_clip = args.reward_clip,
                           .missing_eos_penalty = args.missing_eos_penalty};
  launch(stream, "reward_shaping", {.grid_x = grid_of(responses), .threads = kWarp}, reward_shaping_kernel, rewards);
}

void gae(Stream& stream, const GaeArgs& args) {
  require_rank(args.rewards, 1, "rewards");
  const int64_t tokens = args.rewards.rows();
  require_tokens(stream, args.rewards, tokens, "rewards");
  require_tokens(stream, args.values, tokens, "values");
  require_tokens(stream, args.advantages, tokens, "advantages");
  require_tokens(stream, args.returns, tokens, "returns");
  require_rank(args.offsets, 1, "offsets");
  require_offsets(stream, args.offsets, args.offsets.rows() - 1);
  launch(stream, "gae", {.grid_x = grid_of(args.offsets.rows() - 1), .threads = kWarp}, gae_kernel,
         elements<const float>(args.rewards), elements<const float>(args.values), elements<const int32_t>(args.offsets),
         elements<float>(args.advantages), elements<float>(args.returns), args.gamma, args.lambda);
}

void centered_sums(Stream& stream, const CenteredSumsArgs& args) {
  require_rank(args.x, 1, "x");
  const int64_t tokens = args.x.rows();
  require_tokens(stream, args.x, tokens, "x");
  require_vector(stream, args.sums, DType::f64, 2, "sums");
  const LaunchShape shape = token_shape(tokens);
  double* partial = partial_sums(stream, tokens, 2);
  launch(stream, "centered_sums", shape, centered_sums_kernel, elements<const float>(args.x), partial, args.center,
         tokens);
  launch(stream, "centered_sums total", {.grid_x = 2, .threads = kTokenThreads}, add_blocks_kernel<false>, partial,
         shape.blocks(), elements<double>(args.sums));
}

void whiten(Stream& stream, const WhitenArgs& args) {
  require_rank(args.x, 1, "x");
  require_tokens(stream, args.x, args.x.rows(), "x");
  TERCET_REQUIRE(args.variance + args.epsilon > 0, "a variance of {}", args.variance);
  launch(stream, "whiten", token_shape(args.x.rows()), whiten_kernel, elements<float>(args.x), args.mean,
         1 / std::sqrt(args.variance + args.epsilon), args.x.rows());
}

void ppo_policy_loss(Stream& stream, const PpoPolicyLossArgs& args) {
  require_rank(args.log_prob, 1, "log_prob");
  const int64_t tokens = args.log_prob.rows();
  require_tokens(stream, args.log_prob, tokens, "log_prob");
  require_tokens(stream, args.old_log_prob, tokens, "old_log_prob");
  require_tokens(stream, args.advantages, tokens, "advantages");
  require_tokens(stream, args.d_log_prob, tokens, "d_log_prob");
  TERCET_REQUIRE(args.entropy.defined() == args.d_entropy.defined(), "entropy and d_entropy go together");
  TERCET_REQUIRE(args.entropy.defined() || args.entropy_coef == 0, "an entropy bonus needs the entropy");
  if (args.entropy.defined()) {
    require_tokens(stream, args.entropy, tokens, "entropy");
    require_tokens(stream, args.d_entropy, tokens, "d_entropy");
  }
  require_vector(stream, args.statistics, DType::f64, kPolicySums, "statistics");
  require_vector(stream, args.max_ratio_deviation, DType::f64, 1, "max_ratio_deviation");
  TERCET_REQUIRE(args.clip_range >= 0, "a clip range of {}", args.clip_range);
  const PolicyTokens p = {.log_prob = elements<const float>(args.log_prob),
                          .old_log_prob = elements<const float>(args.old_log_prob),
                          .advantages = elements<const float>(args.advantages),
                          .entropy = elements<const float>(args.entropy),
                          .d_log_prob = elements<float>(args.d_log_prob),
                          .d_entropy = elements<float>(args.d_entropy),
                          .clip_range = args.clip_range,
                          .entropy_coef = args.entropy_coef,
                          .scale = args.scale};
  if (tokens == 0) return;
  const LaunchShape shape = token_shape(tokens);
  double* partial = partial_sums(stream, tokens, kPolicySums + 1);
  launch(stream, "ppo_policy_loss", shape, policy_kernel, p, partial, tokens);
  launch(stream, "ppo_policy_loss total", {.grid_x = kPolicySums, .threads = kTokenThreads}, add_blocks_kernel<true>,
         partial, shape.blocks(), elements<double>(args.statistics));
  launch(stream, "ppo_policy_loss deviation", {.threads = kTokenThreads}, add_deviations_kernel,
         partial + kPolicySums * shape.blocks(), shape.blocks(), elements<double>(args.max_ratio_deviation));
}

void ppo_value_loss(Stream& stream, const PpoValueLossArgs& args) {
  require_rank(args.values, 1, "values");
  const int64_t tokens = args.values.rows();
  require_tokens(stream, args.values, tokens, "values");
  require_tokens(stream, args.old_values, tokens, "old_values");
  require_tokens(stream, args.returns, tokens, "returns");
  require_vector(stream, args.d_values, args.d_values.dtype, tokens, "d_values");
  require_vector(stream, args.statistics, DType::f64, kValueSums, "statistics");
  TERCET_REQUIRE(args.clip_range >= 0, "a clip range of {}", args.clip_range);
  const ValueTokens v = {.values = elements<const float>(args.values),
                         .old_values = elements<const float>(args.old_values),
                         .returns = elements<const float>(args.returns),
                         .clip_range = args.clip_range,
                         .scale = args.scale};
  dispatch_element(args.d_values.dtype, [&]<class G>() {
    if (tokens == 0) return;
    const LaunchShape shape = token_shape(tokens);
    double* partial = partial_sums(stream, tokens, kValueSums);
    launch(stream, "ppo_value_loss", shape, value_kernel<G>, v, elements<G>(args.d_values), partial, tokens);
    launch(stream, "ppo_value_loss total", {.grid_x = kValueSums, .threads = kTokenThreads}, add_blocks_kernel<true>,
           partial, shape.blocks(), elements<double>(args.statistics));
  });
}

}  // namespace tercet::gpu
