// Tensor: a non-owning view of memory on a device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "device/dtype.h"

namespace tercet {

enum class DeviceKind { cpu, cuda, emu };

// "cpu", "cuda", "emu".
const char* device_name(DeviceKind kind);

// A view of `rank` dimensions. A row is what the first index selects: rows lie `pitch` elements apart, everything
// inside a row is contiguous and row-major. A default-constructed Tensor is undefined and stands for "not given".
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  int64_t pitch = 0;

  Tensor() = default;
  // A contiguous view; `dimensions` has 1 to 4 non-negative entries.
  Tensor(void* memory, DType element, DeviceKind where, std::initializer_list<int64_t> dimensions);

  bool defined() const { return rank > 0; }
  int64_t rows() const { return rank > 0 ? shape[0] : 0; }
  // Elements of one row.
  int64_t columns() const;
  int64_t elements() const { return rows() * columns(); }
  bool contiguous() const { return rows() <= 1 || pitch == columns(); }

  // Rows [first, first + count).
  Tensor row_range(int64_t first, int64_t count) const;
  // Columns [first, first + count) of a view of rank 2; keeps the pitch.
  Tensor column_range(int64_t first, int64_t count) const;
  // The same elements under another shape; the view must be contiguous and hold exactly as many.
  Tensor reshaped(std::initializer_list<int64_t> dimensions) const;

  // The typed address of a row; throws Error when T is not the dtype.
  template <class T>
  T* row(int64_t index = 0) const {
    TERCET_REQUIRE(DTypeOf<T>::value == dtype, "a {} view is read as {}", dtype_name(dtype),
                   dtype_name(DTypeOf<T>::value));
    return static_cast<T*>(data) + index * pitch;
  }

  // "fp32[12, 64]"
  std::string describe() const;
};

// Throws Error unless `tensor` is defined and has exactly this dtype and shape. `name` is for the message.
void require_shape(const Tensor& tensor, DType dtype, std::initializer_list<int64_t> shape, const char* name);

// The dtype in which row statistics, losses and log-probabilities of a tensor of `dtype` are kept: fp64 for fp64, else
// fp32.
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace tercet
