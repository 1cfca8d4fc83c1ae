#include "optim/loss_scale.h"

#include <algorithm>

#include "base/error.h"

namespace tercet {
namespace {

constexpr double kFirst = 65536;
constexpr double kHighest = 16777216;
constexpr double kFactor = 2;
constexpr int64_t kWindow = 1000;

}  // namespace

LossScale::LossScale(DType dtype) : dynamic_(dtype == DType::f16), value_(dynamic_ ? kFirst : 1) {}

void LossScale::count_finite_step() {
  if (!dynamic_ || ++finite_steps_ < kWindow) return;
  value_ = std::min(value_ * kFactor, kHighest);
  finite_steps_ = 0;
}

bool LossScale::lower() {
  if (!dynamic_ || value_ <= 1) return false;
  value_ /= kFactor;
  finite_steps_ = 0;
  return true;
}

Json LossScale::state() const {
  Json state = Json::object();
  state.set("value", value_).set("finite_steps", finite_steps_);
  return state;
}

void LossScale::set_state(const Json& state) {
  const double value = state.at("value").as_double();
  if (!dynamic_ && value != 1)
    fail_input(fmt::format("the checkpoint has a loss scale of {}, which only fp16 has", value), "--dtype",
               "resume in the dtype of the run");
  value_ = value;
  finite_steps_ = state.at("finite_steps").as_int();
}

}  // namespace tercet
