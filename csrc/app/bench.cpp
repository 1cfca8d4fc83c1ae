#include "app/bench.h"

#include <fmt/chrono.h>

#include <cstdio>
#include <ctime>

#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "kernels/simd.h"
#include "train/settings.h"

namespace tercet {
namespace {

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

std::string rate_words(const DeviceRates& rates, DType dtype) {
  const std::string peak = rates.peak > 0 ? fmt::format("{:.0f} TFLOP/s by the data sheet", rates.peak / 1e12)
                                          : "not known, the measured product stands for it";
  return fmt::format("copy of {}: {:.4g} GB/s; product of {}: {:.4g} TFLOP/s; peak of dense {}: {}", rates.copy_size,
                     rates.copy / 1e9, rates.product_size, rates.product / 1e12, dtype_name(dtype), peak);
}

OptConfig tiny_config() {
  OptConfig config;
  config.vocab_size = 320;
  config.hidden_size = config.word_embed_proj_dim = 64;
  config.num_hidden_layers = 2;
  config.ffn_dim = 256;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 128;
  return config;
}

}  // namespace

BenchDevice::BenchDevice(const BenchSettings& settings) {
  set_threads(settings.threads > 0 ? settings.threads : available_cores());
  device = open_device(settings.device);
  stream = device->create_stream();
  dtype = checked_dtype(*device, settings.dtype);
  pace = BenchPace::of(kind(), settings.repeats);
}

std::string BenchDevice::description() const {
  return kind() == DeviceKind::cpu ? fmt::format("{}, {}", device->description(), simd_ops().isa)
                                   : device->description();
}

NamedConfig bench_config(const std::string& name, const std::string& flag) {
  if (name == "tiny") return {name, tiny_config()};
  if (name.ends_with(".json")) return {name, OptConfig::from_json(parse_json(read_file(name), name), name)};
  try {
    return {name, OptConfig::released(name)};
  } catch (const Error&) {
    fail_input(fmt::format("no model size is called \"{}\"", name), flag,
               "use tiny, a released size (opt-125m, opt-350m, opt-1.3b, ..., opt-175b) or a config.json");
  }
}

BenchOutput::BenchOutput(const BenchSettings& settings, const BenchDevice& device, const std::string& heading)
    : settings_(settings) {
  const std::string date = today();
  common_ = Json::object();
  common_.set("date", date).set("device", device.description()).set("dtype", dtype_name(device.dtype));
  common_.set("copy_bytes_per_s", device.rates.copy).set("product_flop_per_s", device.rates.product);
  common_.set("peak_flop_per_s", device.rates.peak > 0 ? Json(device.rates.peak) : Json());
  if (settings.json) return;
  fmt::print("{}, {}, {}\n{}\n", date, device.description(), dtype_name(device.dtype),
             rate_words(device.rates, device.dtype));
  if (device.kind() == DeviceKind::emu) fmt::print("emulated: times mean nothing, they show that the cases run\n");
  fmt::print("\n{}\n", heading);
}

void BenchOutput::add(const std::string& row, Json line) {
  Json all = common_;
  for (auto& [name, value] : line.as_object()) all.set(name, std::move(value));
  const std::string text = all.dump();
  lines_ += text + "\n";
  fmt::print("{}\n", settings_.json ? text : row);
  std::fflush(stdout);
}

void BenchOutput::finish() const {
  if (!settings_.out.empty()) write_file_atomically(settings_.out, lines_);
}

int run_bench(const BenchSettings& settings) {
  return settings.what == "kernels" ? run_bench_kernels(settings) : run_bench_step(settings);
}

}  // namespace tercet
