// `tercet bench kernels`.
#include <algorithm>

#include "app/bench.h"
#include "app/bench_cases.h"
#include "base/error.h"
#include "kernels/op_list.h"

namespace tercet {
namespace {

// Sets of tensors are made until they pass three times the largest cache, so that a call finds none of its inputs
// there.
struct Rotation {
  size_t bytes;
  size_t most_sets;
};

Rotation rotation(DeviceKind device) {
  switch (device) {
    case DeviceKind::cuda:
      return {size_t{384} << 20, 64};  // of 128 MiB of L2 cache at most
    case DeviceKind::cpu:
      return {size_t{96} << 20, 16};
    case DeviceKind::emu:
      return {0, 1};
  }
  return {};
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<NamedConfig> chosen_configs(const BenchSettings& settings, DeviceKind device) {
  std::vector<std::string> names;
  for (const std::string& text : settings.model_size)
    for (const std::string& name : split_at_commas(text)) names.push_back(name);
  if (names.empty()) {
    if (device == DeviceKind::cuda) names = {"opt-1.3b", "opt-13b"};
    if (device == DeviceKind::cpu) names = {"opt-125m"};
    if (device == DeviceKind::emu) names = {"tiny"};
  }
  std::vector<NamedConfig> configs;
  for (const std::string& name : names) configs.push_back(bench_config(name, "--model-size"));
  return configs;
}

int64_t chosen_tokens(const BenchSettings& settings, DeviceKind device) {
  if (settings.tokens > 0) return settings.tokens;
  return device == DeviceKind::cuda ? 8192 : device == DeviceKind::cpu ? 512 : 64;
}

[[noreturn]] void fail_no_case(const std::string& pattern) {
  std::string names;
  for (const OpEntry& op : all_ops()) names += (names.empty() ? "" : ", ") + std::string(op.name);
  fail_input(fmt::format("no case has \"{}\" in its name", pattern), "--ops", "the ops are " + names);
}

bool has(const BenchCase& one, const std::string& pattern) { return one.name().find(pattern) != std::string::npos; }

// The cases whose names contain one of the patterns of --ops.
std::vector<BenchCase> chosen_cases(const BenchSettings& settings, DeviceKind device, DType dtype) {
  std::vector<BenchCase> cases;
  for (const NamedConfig& model : chosen_configs(settings, device))
    for (BenchCase& one : bench_cases(bench_sizes(model.name, model.config, dtype, chosen_tokens(settings, device))))
      cases.push_back(std::move(one));
  const std::vector<std::string> patterns = split_at_commas(settings.ops);
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(cases, [&](const BenchCase& one) { return has(one, pattern); })) fail_no_case(pattern);
  std::erase_if(cases, [&](const BenchCase& one) {
    return std::ranges::none_of(patterns, [&](const std::string& pattern) { return has(one, pattern); });
  });
  return cases;
}

BenchTime time_case(BenchDevice& bench, const BenchCase& one) {
  const Rotation limits = rotation(bench.kind());
  std::vector<std::unique_ptr<BenchTensors>> sets;
  std::vector<BenchCall> calls;
  size_t bytes = 0;
  do {
    sets.push_back(std::make_unique<BenchTensors>(*bench.stream));
    calls.push_back(one.prepare(*sets.back()));
    if (calls.back().restore) calls.back().restore(*bench.stream);
    bytes += sets.back()->allocated_bytes();
  } while (bytes < limits.bytes && sets.size() < limits.most_sets);
  return measure(*bench.stream, calls, bench.pace);
}

struct CaseFigures {
  double bytes_per_s, flop_per_s, floor_seconds, floor_share, measured_share;

  CaseFigures(const BenchCase& one, const BenchTime& time, const DeviceRates& rates)
      : bytes_per_s(static_cast<double>(one.bytes) / time.median),
        flop_per_s(static_cast<double>(one.flops) / time.median),
        floor_seconds(one.floor_seconds(rates)),
        floor_share(floor_seconds / time.median),
        measured_share(std::max(bytes_per_s / rates.copy, flop_per_s / rates.product)) {}
};

std::string heading() {
  return fmt::format("{:<10}{:<42}{:<34}{:<6}{:>12}{:>12}{:>8}{:>9}{:>10}{:>11}{:>10}{:>13}", "model", "op", "shape",
                     "dtype", "time us", "least us", "spread", "GB/s", "TFLOP/s", "floor us", "of floor",
                     "of measured");
}

std::string row(const BenchCase& one, const BenchTime& time, const CaseFigures& f) {
  const std::string flops = one.flops > 0 ? fmt::format("{:.4g}", f.flop_per_s / 1e12) : "-";
  return fmt::format("{:<10}{:<42}{:<34}{:<6}{:>12.1f}{:>12.1f}{:>7.0f}%{:>9.4g}{:>10}{:>11.1f}{:>9.1f}%{:>12.1f}%",
                     one.model, one.name(), one.shape, dtype_name(one.dtype), time.median * 1e6, time.smallest * 1e6,
                     time.spread * 100, f.bytes_per_s / 1e9, flops, f.floor_seconds * 1e6, f.floor_share * 100,
                     f.measured_share * 100);
}

Json json_line(const BenchCase& one, const BenchTime& time, const CaseFigures& f) {
  Json json = Json::object();
  json.set("model", one.model).set("op", one.op).set("part", one.part).set("shape", one.shape);
  json.set("dtype", dtype_name(one.dtype)).set("bytes", one.bytes).set("flop", one.flops);
  json.set("seconds", time.median).set("least_seconds", time.smallest).set("spread", time.spread);
  json.set("repeats", time.repeats).set("calls", time.calls);
  json.set("bytes_per_s", f.bytes_per_s).set("flop_per_s", f.flop_per_s).set("floor_seconds", f.floor_seconds);
  json.set("share_of_floor", f.floor_share).set("share_of_measured", f.measured_share);
  return json;
}

}  // namespace

int run_bench_kernels(const BenchSettings& settings) {
  BenchDevice bench(settings);
  const std::vector<BenchCase> cases = chosen_cases(settings, bench.kind(), bench.dtype);
  bench.measure_rates();
  BenchOutput output(settings, bench, heading());
  for (const BenchCase& one : cases) {
    const BenchTime time = time_case(bench, one);
    const CaseFigures figures(one, time, bench.rates);
    output.add(row(one, time, figures), json_line(one, time, figures));
  }
  output.finish();
  return 0;
}

}  // namespace tercet
