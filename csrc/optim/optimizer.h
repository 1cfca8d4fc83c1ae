// optim: AdamW over the segments of units, learning-rate schedules, clipping, the loss scale.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "optim/loss_scale.h"
#include "shard/unit.h"

namespace tercet {

enum class ScheduleShape { cosine, linear, constant };

// Learning rate as a function of the optimiser step. Warm-up is linear from lr / warmup_steps at step 1 to lr; after it
// the rate falls to 0 at `total_steps` + 1 (cosine, linear) or stays.
struct Schedule {
  ScheduleShape shape = ScheduleShape::cosine;
  double lr = 1e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // `step` counts from 1.
  double at(int64_t step) const;
};

struct AdamWOptions {
  std::string prefix;  // of slot names
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;   // of segments that decay
  double max_grad_norm = 1;  // 0: no clipping
  Phase first = Phase::rollout;
  Phase last = Phase::save;
};

// AdamW over all trainable segments of a UnitSet.
class AdamW {
 public:
  static std::vector<Slot> footprint(const AdamWOptions& options);
  AdamW(UnitSet& units, const AdamWOptions& options, Arena& arena);

  // What the gradients in the units are multiplied by.
  LossScale& loss_scale() { return loss_scale_; }

  // The 2-norm of all gradients over all ranks, the loss scale divided out; not finite when a gradient is not.
  double gradient_norm(Stream& stream);

  // The trainable tensor whose gradient has the first non-finite element, or "" when there is none (host inspection).
  std::string first_non_finite_gradient(Stream& stream);

  // One step with the gradients, divided by the loss scale, clipped by min(1, max_grad_norm / (norm + 1e-6)), norm
  // being gradient_norm(). Counts the step, also for the loss scale. The gradients are lost.
  void step(Stream& stream, double lr, double norm);

  // After a step and before other gradients: 2-norms over all trainable tensors of what it has added to the weights,
  // and of the weights themselves (the masters of 16-bit ones).
  struct StepNorms {
    double update = 0;
    double parameters = 0;
  };
  StepNorms step_norms(Stream& stream);

  // Optimiser steps taken; a part of checkpoints.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  // The 2-norm over the trainable segments of one of their buffers.
  double norm_of(Stream& stream, const std::function<Tensor(const UnitSet::Buffers&)>& choose);

  UnitSet& units_;
  AdamWOptions options_;
  LossScale loss_scale_;
  Tensor control_, sum_;
  int64_t steps_ = 0;
};

}  // namespace tercet
