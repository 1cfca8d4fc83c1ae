#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "device/dtype.h"

namespace tercet {
namespace {

// The value of a small float from its definition.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST_CASE("all 65,536 patterns of fp16 and bf16 widen exactly and narrow back to themselves") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const BFloat16 brain{static_cast<uint16_t>(bits)};
    CHECK_UNARY(same(static_cast<double>(to_float(half)), decode(bits, 5, 10)));
    CHECK_UNARY(same(static_cast<double>(to_float(brain)), decode(bits, 8, 7)));
    if (!std::isnan(to_float(half))) CHECK_UNARY(to_float16(to_float(half)).bits == half.bits);
    if (!std::isnan(to_float(brain))) CHECK_UNARY(to_bfloat16(to_float(brain)).bits == brain.bits);
  }
}

TEST_CASE("narrowing rounds to the nearest value, ties to even, in one rounding from fp64") {
  const RandomStream random(1, RandomPurpose::test);
  for (uint32_t i = 0; i < 20000; ++i) {
    // Two neighbours of fp16 and a point between them: the middle exactly, or the middle moved by 2^-45 of it.
    const auto low = static_cast<uint16_t>(random.below(0x7BFF, i));
    const double a = to_float(Float16{low});
    const double b = to_float(Float16{static_cast<uint16_t>(low + 1)});
    const double middle = (a + b) / 2;
    const auto narrow = [](double value) {
      Float16 result;
      convert(DType::f64, &value, DType::f16, &result, 1);
      return result.bits;
    };
    CHECK_UNARY(narrow(middle) == (low % 2 == 0 ? low : low + 1));
    CHECK_UNARY(narrow(middle * (1 + 0x1p-45)) == low + 1);
    CHECK_UNARY(narrow(middle * (1 - 0x1p-45)) == low);
  }
  CHECK(to_float16(65520.0f).bits == 0x7C00);
  CHECK(to_float16(65519.0f).bits == 0x7BFF);
  CHECK(std::isnan(to_float(to_float16(NAN))));
  CHECK(std::isnan(to_float(to_bfloat16(NAN))));
}

TEST_CASE("dtypes are known by their names") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    CHECK(parse_dtype(dtype_name(dtype), "--dtype") == dtype);
  CHECK_THROWS_WITH(parse_dtype("fp8", "--dtype"), "--dtype: unknown dtype \"fp8\"; use fp64, fp32, bf16 or fp16");
}

}  // namespace tercet
