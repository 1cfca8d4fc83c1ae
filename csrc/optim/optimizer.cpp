#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "device/profile_scope.h"
#include "kernels/adamw.h"

namespace tercet {

double Schedule::at(int64_t step) const {
  if (step <= warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (shape == ScheduleShape::constant) return lr;
  const auto span = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps - 1) / span);
  if (shape == ScheduleShape::linear) return lr * (1 - progress);
  return lr * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

std::vector<Slot> AdamW::footprint(const AdamWOptions& options) {
  return {{options.prefix + "/control", MemoryClass::optimizer, 2 * sizeof(double), options.first, options.last},
          {options.prefix + "/norm", MemoryClass::optimizer, sizeof(double), options.first, options.last}};
}

AdamW::AdamW(UnitSet& units, const AdamWOptions& options, Arena& arena)
    : units_(units),
      options_(options),
      loss_scale_(units.options().dtype),
      control_(arena.take(options.prefix + "/control", DType::f64, {2})),
      sum_(arena.take(options.prefix + "/norm", DType::f64, {1})) {}

double AdamW::norm_of(Stream& stream, const std::function<Tensor(const UnitSet::Buffers&)>& choose) {
  stream.fill_zero(sum_.data, sizeof(double));
  for (int u = 0; u < units_.count(); ++u)
    for (size_t s = 0; s < units_.spec(u).segments.size(); ++s) {
      const UnitSet::Buffers& buffers = units_.buffers(u, static_cast<int>(s));
      if (buffers.gradient.defined()) sum_of_squares(stream, {.x = choose(buffers), .sum = sum_});
    }
  double sum = 0;
  stream.copy_to_host(&sum, sum_.data, sizeof(sum));
  stream.synchronize();
  return std::sqrt(sum);
}

double AdamW::gradient_norm(Stream& stream) {
  return norm_of(stream, [](const UnitSet::Buffers& buffers) { return buffers.gradient; }) / loss_scale_.value();
}

AdamW::StepNorms AdamW::step_norms(Stream& stream) {
  return {norm_of(stream, [](const UnitSet::Buffers& buffers) { return buffers.gradient; }),
          norm_of(stream, [](const UnitSet::Buffers& buffers) { return buffers.exact(); })};
}

std::string AdamW::first_non_finite_gradient(Stream& stream) {
  for (int u = 0; u < units_.count(); ++u)
    for (const SegmentSpec& segment : units_.spec(u).segments)
      for (const TensorSpec& tensor : segment.tensors) {
        if (!segment.trainable) continue;
        const Tensor gradient = units_.gradient(tensor.name);
        stream.fill_zero(sum_.data, sizeof(double));
        sum_of_squares(stream, {.x = gradient.reshaped({gradient.elements()}), .sum = sum_});
        double sum = 0;
        stream.copy_to_host(&sum, sum_.data, sizeof(sum));
        stream.synchronize();
        if (!std::isfinite(sum)) return tensor.name;
      }
  return "";
}

void AdamW::step(Stream& stream, double lr, double norm) {
  const ProfileScope scope(stream, "optimizer step");
  units_.require_idle();
  ++steps_;
  double scale = 1 / loss_scale_.value();
  if (options_.max_grad_norm > 0) scale *= std::min(1.0, options_.max_grad_norm / (norm + 1e-6));
  const double control[2] = {scale, 0};
  stream.copy_to_device(control_.data, control, sizeof(control));
  stream.synchronize();
  for (int u = 0; u < units_.count(); ++u)
    for (size_t s = 0; s < units_.spec(u).segments.size(); ++s) {
      const UnitSet::Buffers& buffers = units_.buffers(u, static_cast<int>(s));
      if (!buffers.gradient.defined()) continue;
      adamw(stream, {.weights = buffers.weights,
                     .master = buffers.master,
                     .gradient = buffers.gradient,
                     .m = buffers.m,
                     .v = buffers.v,
                     .control = control_,
                     .lr = lr,
                     .beta1 = options_.beta1,
                     .beta2 = options_.beta2,
                     .epsilon = options_.epsilon,
                     .weight_decay = units_.spec(u).segments[s].decay ? options_.weight_decay : 0,
                     .step = steps_});
    }
  loss_scale_.count_finite_step();
}

}  // namespace tercet
