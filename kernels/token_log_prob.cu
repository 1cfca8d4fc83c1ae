// Log-probability and entropy of the next token on the GPU.
//
// Layout    logits [R, V] of any pitch and alignment; a block per row, whose threads take runs of 16 bytes in turn.
// Floor     forward 2 bytes per bf16 logit, backward 2 + 2; one exponential per logit each.
// Forward   one pass: every thread keeps (largest logit, sum exp, sum exp times exponent) of what it has seen and
//           rescales them when a larger logit comes; the block joins its threads' triples in a fixed order. Exponents
//           are base 2.
// Backward  log_sum_exp and entropy are given, so that every element becomes its gradient on its own, in place.
// Sources   M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include <cmath>

#include "kernels/gpu_ops.h"
#include "kernels/gpu_rows.h"
#include "kernels/gpu_softmax.h"

namespace tercet::gpu {
namespace {

template <class T>
__global__ void forward_kernel(Rows<const T> logits, const int32_t* targets, float* log_prob, float* log_sum_exp,
                               float* entropy, float* likeliest, float inverse_temperature, int64_t columns) {
  __shared__ float shared[33];
  const int64_t row = blockIdx.x;
  const T* z = logits[row];
  SoftmaxSums sums(inverse_temperature);
  for_runs(z, columns, [&](int64_t first, int64_t count) {
    float x[Pack<T>::kCount];
    load_run<true>(z + first, count, x, -INFINITY);
    sums.add(x);
  });
  sums.join_block(shared);
  const float weighted = block_sum(sums.weighted, shared);
  if (threadIdx.x != 0) return;
  const float log_sum = logf(sums.sum);
  const float target = to_float(z[targets[row]]);
  log_prob[row] = (target - sums.max) * inverse_temperature - log_sum;
  if (log_sum_exp != nullptr) log_sum_exp[row] = sums.max * inverse_temperature + log_sum;
  if (entropy != nullptr) entropy[row] = log_sum - weighted * kLn2 / sums.sum;
  if (likeliest != nullptr) likeliest[row] = target == sums.max ? 1.0f : 0.0f;
}

template <class T>
struct BackwardRows {
  Rows<T> logits;
  const int32_t* targets;
  const float* log_sum_exp;
  const float* entropy;
  const float* d_log_prob;
  const float* d_entropy;  // nullptr like entropy
};

// x = -p (constant + entropy_slope log p), plus `slope` at the target.
template <class T>
__global__ void backward_kernel(BackwardRows<T> rows, float inverse_temperature, int64_t columns) {
  const int64_t row = blockIdx.x;
  T* z = rows.logits[row];
  const int64_t target = rows.targets[row];
  const float log_sum_exp = rows.log_sum_exp[row];
  const float slope = rows.d_log_prob[row] * inverse_temperature;
  const float entropy_slope = rows.d_entropy == nullptr ? 0.0f : rows.d_entropy[row] * inverse_temperature;
  const float constant = rows.d_entropy == nullptr ? slope : slope + entropy_slope * rows.entropy[row];
  for_runs(z, columns, [&](int64_t first, int64_t count) {
    float x[Pack<T>::kCount];
    load_run<true>(z + first, count, x);
#pragma unroll
    for (int j = 0; j < Pack<T>::kCount; ++j) {
      const float log_p = x[j] * inverse_temperature - log_sum_exp;
      const float p = exp2_fast(log_p * kLog2E);
      x[j] = p == 0 ? 0.0f : -p * (constant + entropy_slope * log_p);
      if (first + j == target) x[j] += slope;
    }
    store_run<true>(z + first, count, x);
  });
}

}  // namespace

void token_log_prob_forward(Stream& stream, const TokenLogProbForwardArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const int64_t rows = args.logits.rows(), columns = args.logits.columns();
  require_matrix(stream, args.logits, dtype, rows, columns, "logits");
  require_vector(stream, args.targets, DType::i32, rows, "targets");
  require_vector(stream, args.log_prob, DType::f32, rows, "log_prob");
  if (args.log_sum_exp.defined()) require_vector(stream, args.log_sum_exp, DType::f32, rows, "log_sum_exp");
  if (args.entropy.defined()) require_vector(stream, args.entropy, DType::f32, rows, "entropy");
  if (args.likeliest.defined()) require_vector(stream, args.likeliest, DType::f32, rows, "likeliest");
  TERCET_REQUIRE(args.temperature > 0, "temperature {}", args.temperature);
  dispatch_element(dtype, [&]<class T>() {
    launch(stream, "token_log_prob_forward", vocabulary_shape(rows, columns), forward_kernel<T>,
           rows_of<const T>(args.logits), elements<const int32_t>(args.targets), elements<float>(args.log_prob),
           elements<float>(args.log_sum_exp), elements<float>(args.entropy), elements<float>(args.likeliest),
           static_cast<float>(1 / args.temperature), columns);
  });
}

void token_log_prob_backward(Stream& stream, const TokenLogProbBackwardArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const int64_t rows = args.logits.rows(), columns = args.logits.columns();
  require_matrix(stream, args.logits, dtype, rows, columns, "logits");
  require_vector(stream, args.targets, DType::i32, rows, "targets");
  require_vector(stream, args.log_sum_exp, DType::f32, rows, "log_sum_exp");
  require_vector(stream, args.d_log_prob, DType::f32, rows, "d_log_prob");
  TERCET_REQUIRE(args.entropy.defined() == args.d_entropy.defined(), "entropy and d_entropy go together");
  if (args.d_entropy.defined()) {
    require_vector(stream, args.entropy, DType::f32, rows, "entropy");
    require_vector(stream, args.d_entropy, DType::f32, rows, "d_entropy");
  }
  TERCET_REQUIRE(args.temperature > 0, "temperature {}", args.temperature);
  dispatch_element(dtype, [&]<class T>() {
    const BackwardRows<T> backward = {.logits = rows_of<T>(args.logits),
                                      .targets = elements<const int32_t>(args.targets),
                                      .log_sum_exp = elements<const float>(args.log_sum_exp),
                                      .entropy = elements<const float>(args.entropy),
                                      .d_log_prob = elements<const float>(args.d_log_prob),
                                      .d_entropy = elements<const float>(args.d_entropy)};
    launch(stream, "token_log_prob_backward", vocabulary_shape(rows, columns), backward_kernel<T>, backward,
           static_cast<float>(1 / args.temperature), columns);
  });
}

}  // namespace tercet::gpu
