#include "app/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "app/bench_tensors.h"
#include "device/gpu_stream.h"
#include "device/memory_plan.h"
#include "device/peak_rate.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace tercet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr int64_t kMostCalls = 4096;

// `count` calls, the sets in turn, queued as one: a captured graph where the stream has graphs.
class Measurement {
 public:
  Measurement(Stream& stream, const std::vector<BenchCall>& calls, int64_t count)
      : stream_(stream), calls_(calls), count_(count) {
    if (stream.device().kind() == DeviceKind::cpu) return;
    graph_ = capture(static_cast<GpuStream&>(stream), [this] { queue(); });
  }

  // Seconds of all calls.
  double run() {
    for (const BenchCall& call : calls_)
      if (call.restore) call.restore(stream_);
    stream_.synchronize();
    const Clock::time_point start = Clock::now();
    if (graph_)
      static_cast<GpuStream&>(stream_).launch(*graph_);
    else
      queue();
    stream_.synchronize();
    return seconds_since(start);
  }

 private:
  void queue() {
    for (int64_t i = 0; i < count_; ++i) calls_[static_cast<size_t>(i) % calls_.size()].run(stream_);
  }

  Stream& stream_;
  const std::vector<BenchCall>& calls_;
  int64_t count_;
  std::unique_ptr<Graph> graph_;
};

// Seconds of a call once everything is warm.
double warm_up(Stream& stream, const std::vector<BenchCall>& calls) {
  double seconds = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const Clock::time_point start = Clock::now();
    for (const BenchCall& call : calls) call.run(stream);
    stream.synchronize();
    seconds = seconds_since(start) / static_cast<double>(calls.size());
    if (seconds > 0.1) break;
  }
  return seconds;
}

// Sizes of the reference measurements.
struct RateSizes {
  int64_t copy_elements;  // fp32
  int64_t product;        // rows, depth and columns
};

RateSizes rate_sizes(DeviceKind device) {
  switch (device) {
    case DeviceKind::cuda:
      return {int64_t{1} << 28, 8192};
    case DeviceKind::cpu:
      return {int64_t{1} << 25, 2048};
    case DeviceKind::emu:
      return {int64_t{1} << 16, 64};
  }
  return {};
}

double copy_rate(Stream& stream, int64_t elements, const BenchPace& pace) {
  BenchTensors tensors(stream);
  const Tensor source = tensors.random(DType::f32, {elements});
  const Tensor target = tensors.zeros(DType::f32, {elements});
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  const BenchCall plain{[=](Stream& s) { s.copy_on_device(target.data, source.data, bytes); }};
  const BenchCall by_op{[=](Stream& s) { cast(s, {.source = source, .target = target}); }};
  const double seconds = std::min(measure(stream, {plain}, pace).median, measure(stream, {by_op}, pace).median);
  return 2 * static_cast<double>(bytes) / seconds;
}

double product_rate(Stream& stream, DType dtype, int64_t size, const BenchPace& pace) {
  BenchTensors tensors(stream);
  const LinearForwardArgs args{.x = tensors.random(dtype, {size, size}),
                               .weight = tensors.random(dtype, {size, size}, 0.02),
                               .out = tensors.zeros(dtype, {size, size})};
  const BenchCall call{[args](Stream& s) { linear_forward(s, args); }};
  return 2 * std::pow(static_cast<double>(size), 3) / measure(stream, {call}, pace).median;
}

}  // namespace

BenchTime bench_time(std::vector<double> seconds) {
  TERCET_REQUIRE(!seconds.empty(), "a time of no measurement");
  std::ranges::sort(seconds);
  const auto last = seconds.size() - 1;
  const auto percentile = [&](size_t p) { return seconds[(last * p + 50) / 100]; };
  const double median = (seconds[last / 2] + seconds[(last + 1) / 2]) / 2;
  return {.median = median,
          .smallest = seconds.front(),
          .spread = median > 0 ? (percentile(90) - percentile(10)) / median : 0,
          .repeats = static_cast<int64_t>(seconds.size()),
          .calls = 1};
}

BenchPace BenchPace::of(DeviceKind device, int64_t repeats) {
  BenchPace pace;
  if (device == DeviceKind::cuda) pace = {.measurement_seconds = 2e-3, .least_repeats = 20, .most_repeats = 20};
  if (device == DeviceKind::cpu)
    pace = {.measurement_seconds = 1e-3, .least_repeats = 3, .most_repeats = 20, .budget_seconds = 0.2};
  if (repeats > 0) pace.least_repeats = pace.most_repeats = repeats;
  return pace;
}

BenchTime measure(Stream& stream, const std::vector<BenchCall>& calls, const BenchPace& pace) {
  TERCET_REQUIRE(!calls.empty(), "nothing to measure");
  const double estimate = std::max(1e-9, warm_up(stream, calls));
  const int64_t count =
      std::clamp<int64_t>(std::llround(std::ceil(pace.measurement_seconds / estimate)), 1, kMostCalls);
  Measurement measurement(stream, calls, count);
  if (pace.least_repeats > 1) measurement.run();  // a graph's first launch takes longer
  std::vector<double> seconds;
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < pace.most_repeats; ++i) {
    if (i >= pace.least_repeats && seconds_since(start) > pace.budget_seconds) break;
    seconds.push_back(measurement.run() / static_cast<double>(count));
  }
  BenchTime time = bench_time(std::move(seconds));
  time.calls = count;
  return time;
}

DeviceRates measure_rates(Stream& stream, DType dtype, const BenchPace& pace) {
  const RateSizes sizes = rate_sizes(stream.device().kind());
  DeviceRates rates;
  rates.copy = copy_rate(stream, sizes.copy_elements, pace);
  rates.copy_size = format_bytes(static_cast<size_t>(sizes.copy_elements) * sizeof(float));
  rates.product = product_rate(stream, dtype, sizes.product, pace);
  rates.product_size = fmt::format("{0} x {0} x {0}", sizes.product);
  rates.peak = known_peak(stream.device().description(), dtype);
  return rates;
}

}  // namespace tercet
