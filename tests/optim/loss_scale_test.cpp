#include "optim/loss_scale.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace tercet {
namespace {

void take_finite_steps(LossScale& scale, int count) {
  for (int i = 0; i < count; ++i) scale.count_finite_step();
}

TEST_CASE("the loss scale of fp16 doubles after 1,000 finite steps in a row and halves at an overflow") {
  LossScale scale(DType::f16);
  CHECK(scale.dynamic());
  CHECK(scale.value() == 65536);
  take_finite_steps(scale, 999);
  CHECK(scale.value() == 65536);
  take_finite_steps(scale, 1);
  CHECK(scale.value() == 131072);
  take_finite_steps(scale, 999);
  CHECK(scale.lower());
  CHECK(scale.value() == 65536);
  take_finite_steps(scale, 1);  // the first of a new row
  CHECK(scale.value() == 65536);
}

TEST_CASE("the loss scale of fp16 stays between 1 and 2^24") {
  LossScale scale(DType::f16);
  int halvings = 0;
  while (scale.lower()) ++halvings;
  CHECK(halvings == 16);
  CHECK(scale.value() == 1);
  CHECK_FALSE(scale.lower());
  take_finite_steps(scale, 30'000);
  CHECK(scale.value() == 16777216);
}

TEST_CASE("dtypes with the exponents of fp32 need no loss scale") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    LossScale scale(dtype);
    CHECK_FALSE(scale.dynamic());
    take_finite_steps(scale, 1001);
    CHECK_FALSE(scale.lower());
    CHECK(scale.value() == 1);
  }
}

TEST_CASE("a loss scale goes on from its state, and not in a dtype that has none") {
  LossScale scale(DType::f16);
  scale.lower();
  take_finite_steps(scale, 998);
  LossScale copy(DType::f16);
  copy.set_state(scale.state());
  take_finite_steps(copy, 1);
  CHECK(copy.value() == 32768);
  take_finite_steps(copy, 1);
  CHECK(copy.value() == 65536);
  CHECK_THROWS_WITH_AS(LossScale(DType::bf16).set_state(scale.state()), doctest::Contains("--dtype"), Error);
}

}  // namespace
}  // namespace tercet
