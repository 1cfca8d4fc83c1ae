#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Elements of one task of a flat op, and the most partial sums that a reduction keeps.
constexpr int64_t kFlatTask = 65536;
constexpr int64_t kMaxPartialSums = 4096;

AdamWConstants fold_constants(const AdamWArgs& args) {
  const double step = static_cast<double>(args.step);
  return {.gradient_scale = args.control.row<double>()[0],
          .beta1 = args.beta1,
          .beta2 = args.beta2,
          .epsilon = args.epsilon,
          .decay = args.lr * args.weight_decay,
          .step_size = args.lr / (1 - std::pow(args.beta1, step)),
          .second_moment = 1 / (1 - std::pow(args.beta2, step))};
}

template <class T>
void update(const AdamWArgs& args) {
  const AdamWConstants constants = fold_constants(args);
  const Tensor& master_tensor = args.master.defined() ? args.master : args.weights;
  T* master = master_tensor.row<T>();
  T* gradient = args.gradient.row<T>();
  T* m = args.m.row<T>();
  T* v = args.v.row<T>();
  auto* weights = static_cast<std::byte*>(args.weights.data);
  const auto size = static_cast<int64_t>(dtype_size(args.weights.dtype));
  thread_pool().for_ranges(args.weights.rows(), kFlatTask, [&](int64_t first, int64_t end) {
    row_ops<T>().adamw(master + first, gradient + first, m + first, v + first, constants, end - first);
    if (args.master.defined())
      convert(args.master.dtype, master + first, args.weights.dtype, weights + first * size, end - first);
  });
}

void adamw_cpu(Stream&, const AdamWArgs& args) {
  require_rank(args.weights, 1, "weights");
  const int64_t n = args.weights.rows();
  const DType dtype = args.master.defined() ? statistics_dtype(args.weights.dtype) : args.weights.dtype;
  TERCET_REQUIRE(is_floating(args.weights.dtype), "weights are {}", args.weights.describe());
  require_vector(args.weights, args.weights.dtype, n, "weights");
  if (args.master.defined()) require_vector(args.master, dtype, n, "master");
  require_vector(args.gradient, dtype, n, "gradient");
  require_vector(args.m, dtype, n, "m");
  require_vector(args.v, dtype, n, "v");
  require_vector(args.control, DType::f64, 2, "control");
  TERCET_REQUIRE(args.step >= 1, "step {}", args.step);
  dispatch_floating(dtype, [&]<class T>() {
    if (args.control.row<double>()[1] == 0) update<T>(args);
  });
}

template <class T>
void add_squares(const SumOfSquaresArgs& args) {
  const int64_t n = args.x.rows();
  const T* x = args.x.row<T>();
  const int64_t grain = std::max(kFlatTask, ceil_div(n, kMaxPartialSums));
  const int64_t tasks = ceil_div(n, grain);
  auto* partial = static_cast<double*>(thread_scratch(kOpScratch, sizeof(double) * static_cast<size_t>(tasks)));
  thread_pool().for_ranges(n, grain, [&](int64_t first, int64_t end) {
    partial[first / grain] = row_ops<T>().sum_of_squares(x + first, end - first);
  });
  double total = 0;
  for (int64_t i = 0; i < tasks; ++i) total += partial[i];
  args.sum.row<double>()[0] += total;
}

void sum_of_squares_cpu(Stream&, const SumOfSquaresArgs& args) {
  require_rank(args.x, 1, "x");
  require_vector(args.x, args.x.dtype, args.x.rows(), "x");
  require_vector(args.sum, DType::f64, 1, "sum");
  dispatch_floating(args.x.dtype, [&]<class T>() { add_squares<T>(args); });
}

void moving_average_cpu(Stream&, const MovingAverageArgs& args) {
  require_rank(args.average, 1, "average");
  const int64_t n = args.average.rows();
  const DType dtype = args.average.dtype;
  require_vector(args.average, dtype, n, "average");
  require_vector(args.x, dtype, n, "x");
  dispatch_floating(dtype, [&]<class T>() {
    T* average = args.average.row<T>();
    const T* x = args.x.row<T>();
    thread_pool().for_ranges(n, kFlatTask, [&](int64_t first, int64_t end) {
      row_ops<T>().approach(average + first, static_cast<T>(1 - args.decay), x + first, end - first);
    });
  });
}

}  // namespace

const Op<AdamWArgs> adamw{"adamw", adamw_cpu};
const Op<SumOfSquaresArgs> sum_of_squares{"sum_of_squares", sum_of_squares_cpu};
const Op<MovingAverageArgs> moving_average{"moving_average", moving_average_cpu};

}  // namespace tercet
