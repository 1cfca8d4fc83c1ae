// device: what a tensor is and where it lives. Devices, streams, buffers, the memory plan's slots, and Tensor, a
// non-owning view. No op is defined here, and nothing above this folder sees a device's own API.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tercet {

enum class DType { f64, f32, bf16, f16, i64, i32, u8 };

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// "fp64", "fp32", "bf16", "fp16", "int64", "int32", "uint8".
const char* dtype_name(DType dtype);

// The inverse of dtype_name; throws Error(Fault::input, where = `where`) for another name.
DType parse_dtype(std::string_view name, const std::string& where);

// bfloat16: the upper half of a float.
struct BFloat16 {
  uint16_t bits = 0;
};

// IEEE binary16.
struct Float16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
float to_float(Float16 value);

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
BFloat16 to_bfloat16(float value);
Float16 to_float16(float value);

// dst[i] = src[i] for `count` elements of floating dtypes, on host memory. Exact to a wider type; to a narrower one
// rounds to nearest, ties to even (from fp64 to a 16-bit type in one rounding). Throws Error(Fault::run) for integer
// dtypes that differ.
void convert(DType source_dtype, const void* source, DType target_dtype, void* target, int64_t count);

// The DType of a C++ type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace tercet
