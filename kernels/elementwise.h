// Copies, casts and sums over rows.
#pragma once

#include "kernels/op.h"

namespace tercet {

// target[t] = source[t], converted to the target's dtype (floating), any pitch on both sides.
struct CastArgs {
  Tensor source;  // [T, H] or [n]
  Tensor target;  // same shape
};
extern const Op<CastArgs> cast;

// target += scale source, any pitch on both sides.
struct AddScaledArgs {
  Tensor source;  // [T, H] or [n]
  Tensor target;  // same shape and dtype
  double scale = 1;
};
extern const Op<AddScaledArgs> add_scaled;

// x = x scale + shift, in place.
struct AffineArgs {
  Tensor x;  // any shape
  double scale = 1;
  double shift = 0;
};
extern const Op<AffineArgs> affine;

// out[r] = x[rows[r]]
struct GatherRowsArgs {
  Tensor x;     // [T, H]
  Tensor rows;  // [R] int32
  Tensor out;   // [R, H] written
};
extern const Op<GatherRowsArgs> gather_rows;

// out[rows[r]] += x[r]; rows are distinct.
struct ScatterAddRowsArgs {
  Tensor x;     // [R, H]
  Tensor rows;  // [R] int32, distinct
  Tensor out;   // [T, H] accumulated
};
extern const Op<ScatterAddRowsArgs> scatter_add_rows;

}  // namespace tercet
