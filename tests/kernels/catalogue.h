// Every op by name, each with a way to run it on a problem of about `size` tokens: what holds for all ops (threads,
// instruction sets, dtypes, sizes) is tested over this list.
#pragma once

#include <span>

#include "harness.h"

namespace tercet::test {

struct CatalogueEntry {
  const char* op;
  // Runs the op and returns all that it wrote. The inputs do not depend on the runner's dtype.
  Values (*run)(Runner& runner, int64_t size);
  // Largest difference of fp32 from fp64 relative to 1 + |value|, with its reason.
  double fp32_tolerance;
  const char* reason;
};

std::span<const CatalogueEntry> catalogue();

}  // namespace tercet::test
