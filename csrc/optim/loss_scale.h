// The factor that gradients of fp16 runs carry through the backward pass.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "device/dtype.h"

namespace tercet {

// Keeps small fp16 gradients above the least fp16 number: the loss's gradient is multiplied by value(), the optimiser
// divides by it. In fp16 it starts at 2^16, doubles after 1,000 finite steps in a row, up to 2^24, and halves when a
// gradient is not finite, down to 1; other dtypes have fp32's exponents or more and stay at 1. Powers of two, so that
// scaling itself rounds nothing. P. Micikevicius et al., "Mixed precision training", 2018.
class LossScale {
 public:
  explicit LossScale(DType dtype);

  double value() const { return value_; }
  bool dynamic() const { return dynamic_; }

  // Counts a step whose gradients were finite.
  void count_finite_step();
  // Halves the scale; false, and unchanged, when it cannot fall.
  bool lower();

  Json state() const;
  // Throws Error(Fault::input) when the state is of a run in a dtype of the other kind.
  void set_state(const Json& state);

 private:
  bool dynamic_;
  double value_;
  int64_t finite_steps_ = 0;
};

}  // namespace tercet
