#include "device/tensor.h"

#include <fmt/ranges.h>

#include <span>

namespace tercet {

const char* device_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::emu:
      return "emu";
  }
  return "unknown";
}

Tensor::Tensor(void* memory, DType element, DeviceKind where, std::initializer_list<int64_t> dimensions)
    : data(memory), dtype(element), device(where), rank(static_cast<int>(dimensions.size())) {
  TERCET_REQUIRE(rank >= 1 && rank <= kMaxRank, "a view of {} dimensions", rank);
  int d = 0;
  for (const int64_t size : dimensions) {
    TERCET_REQUIRE(size >= 0, "a dimension of size {}", size);
    shape[static_cast<size_t>(d++)] = size;
  }
  pitch = columns();
}

int64_t Tensor::columns() const {
  int64_t product = 1;
  for (int d = 1; d < rank; ++d) product *= shape[static_cast<size_t>(d)];
  return product;
}

Tensor Tensor::row_range(int64_t first, int64_t count) const {
  TERCET_REQUIRE(first >= 0 && count >= 0 && first + count <= rows(), "rows [{}, {}) of {}", first, first + count,
                 describe());
  Tensor view = *this;
  view.shape[0] = count;
  view.data = static_cast<std::byte*>(data) + static_cast<size_t>(first * pitch) * dtype_size(dtype);
  return view;
}

Tensor Tensor::column_range(int64_t first, int64_t count) const {
  TERCET_REQUIRE(rank == 2 && first >= 0 && count >= 0 && first + count <= shape[1], "columns [{}, {}) of {}", first,
                 first + count, describe());
  Tensor view = *this;
  view.shape[1] = count;
  view.data = static_cast<std::byte*>(data) + static_cast<size_t>(first) * dtype_size(dtype);
  return view;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> dimensions) const {
  const Tensor view(data, dtype, device, dimensions);
  TERCET_REQUIRE(contiguous() && view.elements() == elements(), "{} seen as {}", describe(), view.describe());
  return view;
}

std::string Tensor::describe() const {
  if (!defined()) return "undefined";
  return fmt::format("{}[{}]", dtype_name(dtype),
                     fmt::join(std::span<const int64_t>(shape.data(), static_cast<size_t>(rank)), ", "));
}

void require_shape(const Tensor& tensor, DType dtype, std::initializer_list<int64_t> shape, const char* name) {
  const Tensor expected(nullptr, dtype, tensor.device, shape);
  TERCET_REQUIRE(tensor.rank == expected.rank && tensor.shape == expected.shape && tensor.dtype == dtype,
                 "{} is {}, expected {}", name, tensor.describe(), expected.describe());
}

}  // namespace tercet
