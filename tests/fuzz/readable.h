// Reading all that a file of tensors holds.
#pragma once

#include <algorithm>
#include <vector>

#include "store/tensor_file.h"

namespace tercet::fuzz {

// Reads the beginning of every tensor in its own dtype and, where it is floating, as fp32.
inline void read_tensors(const TensorSource& source) {
  constexpr int64_t kElements = 4096;
  std::vector<double> buffer(kElements);
  for (const TensorInfo& info : source.tensors()) {
    const int64_t count = std::min(info.elements(), kElements);
    source.read(info.name, info.dtype, 0, count, buffer.data());
    if (is_floating(info.dtype)) source.read(info.name, DType::f32, info.elements() - count, count, buffer.data());
  }
}

}  // namespace tercet::fuzz
