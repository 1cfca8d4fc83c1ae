// All ops by name, with the dtypes that each kind of device computes in: the rows of the op x device x dtype tables.
#pragma once

#include <span>
#include <string_view>

#include "device/tensor.h"

namespace tercet {

struct OpEntry {
  const char* name;
  // Floating dtypes of the op's element tensors on the CPU and on a GPU (`cuda`, `emu`).
  std::span<const DType> cpu;
  std::span<const DType> gpu;

  bool supports(DeviceKind device, DType dtype) const;
};

// Every op of this folder, in alphabetical order.
std::span<const OpEntry> all_ops();

// The entry of this name; throws Error(Fault::run) when there is none.
const OpEntry& find_op(std::string_view name);

}  // namespace tercet
