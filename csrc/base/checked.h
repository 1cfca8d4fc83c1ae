// Integer arithmetic that throws where C++ would wrap.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace tercet {

// a * b; throws Error(Fault::run) on overflow.
template <std::integral T>
T checked_mul(T a, T b) {
  T result{};
  TERCET_REQUIRE(!__builtin_mul_overflow(a, b, &result), "{} * {} overflows", a, b);
  return result;
}

// a + b; throws Error(Fault::run) on overflow.
template <std::integral T>
T checked_add(T a, T b) {
  T result{};
  TERCET_REQUIRE(!__builtin_add_overflow(a, b, &result), "{} + {} overflows", a, b);
  return result;
}

// The value as another integer type; throws Error(Fault::run) when it does not fit.
template <std::integral To, std::integral From>
To narrow(From value) {
  TERCET_REQUIRE(std::in_range<To>(value), "{} does not fit the integer type", value);
  return static_cast<To>(value);
}

// ceil(a / b) for a >= 0, b > 0.
template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// The smallest multiple of `multiple` that is >= value.
template <std::integral T>
constexpr T round_up(T value, T multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace tercet
