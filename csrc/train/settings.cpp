#include "train/settings.h"

#include <cmath>

#include "base/error.h"

namespace tercet {
namespace {

ScheduleShape parse_schedule_shape(const std::string& name) {
  if (name == "cosine") return ScheduleShape::cosine;
  if (name == "linear") return ScheduleShape::linear;
  if (name == "constant") return ScheduleShape::constant;
  fail_input(fmt::format("unknown schedule \"{}\"", name), "--schedule", "use cosine, linear or constant");
}

// A share of the steps is rounded up; the subtraction keeps 3 % of 100 at 3 despite the rounding of 0.03.
int64_t warmup_steps(double warmup, int64_t total_steps) {
  if (warmup >= 1) return static_cast<int64_t>(std::llround(warmup));
  return static_cast<int64_t>(std::ceil(warmup * static_cast<double>(total_steps) - 1e-9));
}

}  // namespace

Schedule make_schedule(const CommonSettings& settings, double lr, int64_t total_steps) {
  Schedule schedule;
  schedule.shape = parse_schedule_shape(settings.schedule);
  schedule.lr = lr;
  schedule.warmup_steps = warmup_steps(settings.warmup, total_steps);
  schedule.total_steps = total_steps;
  return schedule;
}

DType checked_dtype(const Device& device, const std::string& dtype) {
  if (dtype.empty()) return device.kind() == DeviceKind::cuda ? DType::bf16 : DType::f32;
  const DType parsed = parse_dtype(dtype, "--dtype");
  if (device.supports(parsed)) return parsed;
  std::string supported;
  for (const DType candidate : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (device.supports(candidate)) supported += (supported.empty() ? "" : ", ") + std::string(dtype_name(candidate));
  fail_input(fmt::format("{} does not compute in {}", device_name(device.kind()), dtype), "--dtype",
             "use one of: " + supported);
}

}  // namespace tercet
