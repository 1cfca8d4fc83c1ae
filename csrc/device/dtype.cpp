#include "device/dtype.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace tercet {
namespace {

// A double rounded to float so that a second rounding to a 16-bit type equals one rounding of the double: round to odd.
float to_float_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value) || std::isinf(nearest)) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (bits & 1u) return nearest;
  const bool rounded_away = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(rounded_away ? bits - 1 : bits + 1);
}

template <class From, class To>
To convert_one(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>) {
    return convert_one<float, To>(to_float(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, double>)
      return to_bfloat16(to_float_odd(value));
    else
      return to_bfloat16(value);
  } else if constexpr (std::is_same_v<To, Float16>) {
    if constexpr (std::is_same_v<From, double>)
      return to_float16(to_float_odd(value));
    else
      return to_float16(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void convert_all(const void* source, void* target, int64_t count) {
  const auto* from = static_cast<const From*>(source);
  auto* to = static_cast<To*>(target);
  for (int64_t i = 0; i < count; ++i) to[i] = convert_one<From, To>(from[i]);
}

template <class From>
void convert_from(const void* source, DType target_dtype, void* target, int64_t count) {
  switch (target_dtype) {
    case DType::f64:
      return convert_all<From, double>(source, target, count);
    case DType::f32:
      return convert_all<From, float>(source, target, count);
    case DType::bf16:
      return convert_all<From, BFloat16>(source, target, count);
    case DType::f16:
      return convert_all<From, Float16>(source, target, count);
    default:
      fail_run("no conversion between floating and integer tensors");
  }
}

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "fp64";
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i64:
      return "int64";
    case DType::i32:
      return "int32";
    case DType::u8:
      return "uint8";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name, const std::string& where) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8})
    if (name == dtype_name(dtype)) return dtype;
  fail_input(fmt::format("unknown dtype \"{}\"", name), where, "use fp64, fp32, bf16 or fp16");
}

float to_float(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

Float16 to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal or zero: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

void convert(DType source_dtype, const void* source, DType target_dtype, void* target, int64_t count) {
  if (source_dtype == target_dtype) {
    if (count > 0) std::memcpy(target, source, static_cast<size_t>(count) * dtype_size(source_dtype));
    return;
  }
  switch (source_dtype) {
    case DType::f64:
      return convert_from<double>(source, target_dtype, target, count);
    case DType::f32:
      return convert_from<float>(source, target_dtype, target, count);
    case DType::bf16:
      return convert_from<BFloat16>(source, target_dtype, target, count);
    case DType::f16:
      return convert_from<Float16>(source, target_dtype, target, count);
    default:
      fail_run(fmt::format("no conversion from {} to {}", dtype_name(source_dtype), dtype_name(target_dtype)));
  }
}

}  // namespace tercet
