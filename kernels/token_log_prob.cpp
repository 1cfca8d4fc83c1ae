#include "kernels/token_log_prob.h"

#include <cmath>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

template <class T>
void forward(const TokenLogProbForwardArgs& args) {
  const Rows<T> logits = rows_of<T>(args.logits);
  const int32_t* targets = args.targets.row<int32_t>();
  T* log_prob = elements_of<T>(args.log_prob);
  T* log_sum_exp = elements_of<T>(args.log_sum_exp);
  T* entropy = elements_of<T>(args.entropy);
  T* likeliest = elements_of<T>(args.likeliest);
  const int64_t vocabulary = args.logits.columns();
  const T inverse_temperature = static_cast<T>(1 / args.temperature);
  parallel_rows(args.logits.rows(), vocabulary, [&](int64_t first, int64_t end) {
    const RowOps<T>& ops = row_ops<T>();
    for (int64_t r = first; r < end; ++r) {
      const T* row = logits[r];
      const T max = ops.max(row, vocabulary), target = row[targets[r]];
      const T shift = max * inverse_temperature;
      double sums[2];
      ops.exp_sums(row, inverse_temperature, shift, vocabulary, sums);
      const double log_sum = std::log(sums[0]);
      log_prob[r] = static_cast<T>(double{target} * inverse_temperature - shift - log_sum);
      if (log_sum_exp != nullptr) log_sum_exp[r] = static_cast<T>(shift + log_sum);
      if (entropy != nullptr) entropy[r] = static_cast<T>(log_sum - sums[1] / sums[0]);
      if (likeliest != nullptr) likeliest[r] = static_cast<T>(target == max ? 1 : 0);
    }
  });
}

void token_log_prob_forward_cpu(Stream&, const TokenLogProbForwardArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const DType statistics = statistics_dtype(dtype);
  const int64_t rows = args.logits.rows();
  require_matrix(args.logits, dtype, rows, args.logits.columns(), "logits");
  require_vector(args.targets, DType::i32, rows, "targets");
  require_vector(args.log_prob, statistics, rows, "log_prob");
  if (args.log_sum_exp.defined()) require_vector(args.log_sum_exp, statistics, rows, "log_sum_exp");
  if (args.entropy.defined()) require_vector(args.entropy, statistics, rows, "entropy");
  if (args.likeliest.defined()) require_vector(args.likeliest, statistics, rows, "likeliest");
  TERCET_REQUIRE(args.temperature > 0, "temperature {}", args.temperature);
  require_indices(args.targets.row<int32_t>(), rows, args.logits.columns(), "targets");
  dispatch_floating(dtype, [&]<class T>() { forward<T>(args); });
}

template <class T>
void backward(const TokenLogProbBackwardArgs& args) {
  const Rows<T> logits = rows_of<T>(args.logits);
  const int32_t* targets = args.targets.row<int32_t>();
  const T* log_sum_exp = elements_of<T>(args.log_sum_exp);
  const T* entropy = elements_of<T>(args.entropy);
  const T* d_log_prob = elements_of<T>(args.d_log_prob);
  const T* d_entropy = elements_of<T>(args.d_entropy);
  const int64_t vocabulary = args.logits.columns();
  const T inverse_temperature = static_cast<T>(1 / args.temperature);
  parallel_rows(args.logits.rows(), vocabulary, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const T slope = d_log_prob[r] * inverse_temperature;
      const T entropy_slope = d_entropy == nullptr ? T{0} : d_entropy[r] * inverse_temperature;
      const T constant = d_entropy == nullptr ? slope : slope + entropy_slope * entropy[r];
      row_ops<T>().softmax_gradient(logits[r], inverse_temperature, log_sum_exp[r], constant, entropy_slope,
                                    vocabulary);
      logits[r][targets[r]] += slope;
    }
  });
}

void token_log_prob_backward_cpu(Stream&, const TokenLogProbBackwardArgs& args) {
  require_rank(args.logits, 2, "logits");
  const DType dtype = args.logits.dtype;
  const DType statistics = statistics_dtype(dtype);
  const int64_t rows = args.logits.rows();
  require_matrix(args.logits, dtype, rows, args.logits.columns(), "logits");
  require_vector(args.targets, DType::i32, rows, "targets");
  require_vector(args.log_sum_exp, statistics, rows, "log_sum_exp");
  require_vector(args.d_log_prob, statistics, rows, "d_log_prob");
  TERCET_REQUIRE(args.entropy.defined() == args.d_entropy.defined(), "entropy and d_entropy go together");
  if (args.d_entropy.defined()) {
    require_vector(args.entropy, statistics, rows, "entropy");
    require_vector(args.d_entropy, statistics, rows, "d_entropy");
  }
  TERCET_REQUIRE(args.temperature > 0, "temperature {}", args.temperature);
  require_indices(args.targets.row<int32_t>(), rows, args.logits.columns(), "targets");
  dispatch_floating(dtype, [&]<class T>() { backward<T>(args); });
}

}  // namespace

const Op<TokenLogProbForwardArgs> token_log_prob_forward{"token_log_prob_forward", token_log_prob_forward_cpu};
const Op<TokenLogProbBackwardArgs> token_log_prob_backward{"token_log_prob_backward", token_log_prob_backward_cpu};

}  // namespace tercet
