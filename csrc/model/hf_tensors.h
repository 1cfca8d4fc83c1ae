// What import of Hugging Face folders and export to them share: the tensors of a model, and copying weights with
// checks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"
#include "store/tensor_file.h"

namespace tercet {

// All tensors of an OPT model under their names in a model file, in the order of opt_units.
std::vector<TensorSpec> opt_tensors(const OptConfig& config, Head head);

// Takes elements [first, first + count) of a copy, from host memory.
using WritePart = std::function<void(int64_t first, int64_t count, DType dtype, const void* elements)>;

// Gives elements [first, first + count) of the tensor `info` of `source` to `write` by parts of at most 2^20 elements,
// as fp64 when the tensor is fp64 and else as fp32; parts are counted from the beginning of the range. Throws
// Error(Fault::input) that names the tensor and the element for one that is not finite or that `target`, to which the
// parts will be converted, would round to infinity.
void copy_weights(const TensorSource& source, const TensorInfo& info, int64_t first, int64_t count, DType target,
                  const WritePart& write);

}  // namespace tercet
