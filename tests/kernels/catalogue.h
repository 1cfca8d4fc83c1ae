// Every op by name, each with a way to run it on a problem of about `size` tokens: what holds for all ops (threads,
// instruction sets, dtypes, sizes) is tested over this list.
#pragma once

#include <span>
#include <vector>

#include "harness.h"

namespace tercet::test {

// The tensors that an op wrote.
using Outputs = std::vector<Values>;

// All of them, one after the other.
Values joined(const Outputs& outputs);

struct CatalogueEntry {
  const char* op;
  // Runs the op and returns what it wrote. The inputs depend on the runner's dtype by their rounding alone.
  Outputs (*run)(Runner& runner, int64_t size);
  // Largest difference of fp32 from fp64 relative to 1 + |value|, with its reason.
  double fp32_tolerance;
  const char* reason;
};

std::span<const CatalogueEntry> catalogue();

}  // namespace tercet::test
