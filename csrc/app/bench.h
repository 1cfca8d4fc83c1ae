// What both benches share: the device, the sizes' names, and the lines that they print.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/bench_timing.h"
#include "app/commands.h"
#include "model/config.h"

namespace tercet {

// The device of a bench, and what it reaches.
struct BenchDevice {
  // Sets the number of threads, opens the device and checks the dtype.
  explicit BenchDevice(const BenchSettings& settings);

  void measure_rates() { rates = tercet::measure_rates(*stream, dtype, pace); }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  DType dtype = DType::f32;
  BenchPace pace;
  DeviceRates rates;  // after measure_rates()

  DeviceKind kind() const { return device->kind(); }
  // "cpu (2 threads), avx512"
  std::string description() const;
};

// A model size by name.
struct NamedConfig {
  std::string name;
  OptConfig config;
};

// "tiny" (2 layers of 64, 4 heads, 320 tokens), a released size, or a config.json. Throws Error(Fault::input) that
// names the flag.
NamedConfig bench_config(const std::string& name, const std::string& flag);

// Rows on stdout as they come, or JSON lines under --json; the JSON lines go to --out as well.
class BenchOutput {
 public:
  // Prints the header: date, device, dtype, measured rates, and `heading` above the rows.
  BenchOutput(const BenchSettings& settings, const BenchDevice& device, const std::string& heading);

  // One result. Date, device, threads and rates are added to the JSON line.
  void add(const std::string& row, Json line);
  // Writes --out when it is given.
  void finish() const;

 private:
  const BenchSettings& settings_;
  Json common_;
  std::string lines_;
};

int run_bench_kernels(const BenchSettings& settings);
int run_bench_step(const BenchSettings& settings);

}  // namespace tercet
