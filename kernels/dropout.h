// Dropout whose mask is a function and is never stored.
#pragma once

#include "base/rng.h"
#include "kernels/op.h"

namespace tercet {

// In place: x[t,h] = u >= rate ? x[t,h] / (1 - rate) : 0, with u the uniform number of
// RandomStream(key) at (samples[t], positions[t], lane h). Applied to a gradient it is the backward pass.
struct DropoutArgs {
  Tensor x;          // [T, H], in place
  Tensor samples;    // [T] int64
  Tensor positions;  // [T] int32
  uint64_t key = 0;  // RandomStream::key()
  double rate = 0;   // in [0, 1)
};
extern const Op<DropoutArgs> dropout;

}  // namespace tercet
