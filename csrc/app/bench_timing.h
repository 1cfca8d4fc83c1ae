// Timing of queued work, and what a device reaches: the rates that times are measured against.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace tercet {

// Work on one set of tensors.
struct BenchCall {
  std::function<void(Stream&)> run;
  // Puts back what `run` changes for good, outside of the measured time; may be empty.
  std::function<void(Stream&)> restore = {};
};

// Seconds of one call: median, smallest, and the distance from the 10th to the 90th percentile as a share of the
// median, over `repeats` measurements of `calls` calls each.
struct BenchTime {
  double median = 0, smallest = 0, spread = 0;
  int64_t repeats = 0, calls = 0;
};

// The statistics of measured seconds, at least one; `calls` is 1.
BenchTime bench_time(std::vector<double> seconds);

// How long to measure.
struct BenchPace {
  double measurement_seconds = 0;  // shortest measurement: as many calls as it takes, the sets in turn
  int64_t least_repeats = 1, most_repeats = 1;
  double budget_seconds = 0;  // repeats after the least ones stop here

  // A GPU: 20 measurements of 2 ms. The CPU: 3 to 20 within 0.2 s. The emulator, whose times mean nothing: one call.
  // `repeats` > 0 replaces the number of measurements.
  static BenchPace of(DeviceKind device, int64_t repeats);
};

// Runs each call once to warm up, then measures by the host's clock from the first call queued to the end of
// Stream::synchronize. On a GPU the calls of a measurement are one captured graph, so that the host does not hold them
// up.
BenchTime measure(Stream& stream, const std::vector<BenchCall>& calls, const BenchPace& pace);

// What the device reaches: measured in this process, and what its maker says.
struct DeviceRates {
  double copy = 0;                      // bytes read and written per second by a large copy
  double product = 0;                   // FLOP per second of a large matrix product in the dtype
  std::string copy_size, product_size;  // "1.0 GiB", "8192 x 8192 x 8192"
  double peak = 0;                      // dense FLOP per second in the dtype by the data sheet; 0: not known

  // FLOP per second that floors and utilisation refer to: the peak, or the measured product where it is not known.
  double reference_flops() const { return peak > 0 ? peak : product; }
};

// Copies with the stream's copy and with the `cast` op (of all threads, on a CPU) and takes the faster one.
DeviceRates measure_rates(Stream& stream, DType dtype, const BenchPace& pace);

}  // namespace tercet
