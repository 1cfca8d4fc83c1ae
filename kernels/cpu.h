// What the CPU implementations share: dispatch by dtype, checks of arguments, row views and the splitting of rows.
//
// Scratch memory: an op keeps what all its tasks see in thread_scratch slot kOpScratch of the calling thread; a task
// uses the other slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "device/tensor.h"

namespace tercet {

inline constexpr int kOpScratch = 0;

// Calls body.operator()<float>() or <double>(); throws Error(Fault::run) for a dtype that the CPU does not compute in.
template <class Body>
void dispatch_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f64:
      return body.template operator()<double>();
    default:
      fail_run(fmt::format("the cpu does not compute in {}", dtype_name(dtype)), "--dtype", "use fp32 or fp64");
  }
}

// A matrix [rows, columns] of any pitch on the CPU.
inline void require_matrix(const Tensor& tensor, DType dtype, int64_t rows, int64_t columns, const char* name) {
  require_shape(tensor, dtype, {rows, columns}, name);
  TERCET_REQUIRE(tensor.device == DeviceKind::cpu, "{} is not in the memory of the cpu", name);
  TERCET_REQUIRE(rows <= 1 || tensor.pitch >= columns, "the rows of {} overlap (pitch {})", name, tensor.pitch);
}

// A contiguous vector [n] on the CPU.
inline void require_vector(const Tensor& tensor, DType dtype, int64_t n, const char* name) {
  require_shape(tensor, dtype, {n}, name);
  TERCET_REQUIRE(tensor.device == DeviceKind::cpu, "{} is not in the memory of the cpu", name);
  TERCET_REQUIRE(tensor.contiguous(), "{} is not contiguous (pitch {})", name, tensor.pitch);
}

inline void require_rank(const Tensor& tensor, int rank, const char* name) {
  TERCET_REQUIRE(tensor.rank == rank, "{} is {}, expected {} dimension(s)", name, tensor.describe(), rank);
}

// The rows of a view of rank 1 (elements) or more; nullptr data for a tensor that is not given.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t pitch = 0;

  T* operator[](int64_t row) const { return data + row * pitch; }
  explicit operator bool() const { return data != nullptr; }
};

template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.row<T>(), tensor.pitch};
}

// The elements of a contiguous vector, or nullptr when it is not given.
template <class T>
T* elements_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.row<T>() : nullptr;
}

// offsets [count + 1] int32, from 0 to `total`, never decreasing.
inline const int32_t* require_offsets(const Tensor& offsets, int64_t total, const char* name = "offsets") {
  require_rank(offsets, 1, name);
  TERCET_REQUIRE(offsets.shape[0] >= 1, "{} is empty", name);
  require_vector(offsets, DType::i32, offsets.shape[0], name);
  const int32_t* values = offsets.row<int32_t>();
  const int64_t count = offsets.shape[0] - 1;
  TERCET_REQUIRE(values[0] == 0 && values[count] == total, "{} runs from {} to {}, expected 0 to {}", name, values[0],
                 values[count], total);
  for (int64_t b = 0; b < count; ++b)
    TERCET_REQUIRE(values[b] <= values[b + 1], "{}[{}] = {} is larger than its successor {}", name, b, values[b],
                   values[b + 1]);
  return values;
}

// Throws Error(Fault::run) that names the first index outside [0, limit).
inline void require_indices(const int32_t* indices, int64_t count, int64_t limit, const char* name) {
  for (int64_t i = 0; i < count; ++i)
    TERCET_REQUIRE(indices[i] >= 0 && indices[i] < limit, "{}[{}] = {} lies outside [0, {})", name, i, indices[i],
                   limit);
}

// Elements of work in one task of a row-wise op: a few microseconds.
inline constexpr int64_t kTaskElements = 16384;

// Calls body(first row, end row) on blocks of rows whose size depends on `columns` alone.
template <class Body>
void parallel_rows(int64_t rows, int64_t columns, Body&& body, int64_t task_elements = kTaskElements) {
  const int64_t grain = std::max<int64_t>(1, task_elements / std::max<int64_t>(1, columns));
  thread_pool().for_ranges(rows, grain, body);
}

// Calls body(first column, end column) on slices of columns, for sums that must run over all rows in order.
template <class Body>
void parallel_columns(int64_t columns, Body&& body) {
  thread_pool().for_ranges(columns, 64, body);
}

}  // namespace tercet
