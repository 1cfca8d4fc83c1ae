// Layer normalisation fused with the residual addition that precedes it in a transformer block.
// J. L. Ba et al., "Layer normalization", 2016; biased variance.
#pragma once

#include "kernels/op.h"

namespace tercet {

// sum[t] = x[t] + residual[t]                                     (sum = x when no residual is given)
// mean[t] = 1/H sum_h sum[t,h];  rstd[t] = 1 / sqrt(1/H sum_h (sum[t,h] - mean[t])^2 + epsilon)
// out[t,h] = (sum[t,h] - mean[t]) rstd[t] gamma[h] + beta[h]      (gamma = 1, beta = 0 when not given)
struct LayerNormForwardArgs {
  Tensor x;         // [T, H]
  Tensor residual;  // [T, H] or not given
  Tensor sum;       // [T, H] written; given exactly when `residual` is; may be the same memory as x or residual
  Tensor gamma;     // [H] or not given
  Tensor beta;      // [H] or not given
  Tensor out;       // [T, H] written; may be the same memory as x unless x is needed as the normalised input
  Tensor mean;      // [T] statistics dtype, written; not given in inference
  Tensor rstd;      // [T] statistics dtype, written; not given in inference
  double epsilon = 1e-5;
};
extern const Op<LayerNormForwardArgs> layer_norm_forward;

// With xhat = (sum - mean) rstd and g = d_out gamma:
// d_sum[t,h] = rstd[t] (g[t,h] - mean_h(g) - xhat[t,h] mean_h(g xhat)) + d_residual[t,h]
// d_gamma[h] += sum_t d_out[t,h] xhat[t,h];  d_beta[h] += sum_t d_out[t,h]
struct LayerNormBackwardArgs {
  Tensor d_out;       // [T, H]
  Tensor sum;         // [T, H] the normalised input
  Tensor mean;        // [T]
  Tensor rstd;        // [T]
  Tensor gamma;       // [H] or not given
  Tensor d_residual;  // [T, H] gradient that reaches `sum` by another path, or not given
  Tensor d_sum;       // [T, H] written; may be the same memory as d_residual or d_out
  Tensor d_gamma;     // [H] accumulated, or not given
  Tensor d_beta;      // [H] accumulated, or not given
};
extern const Op<LayerNormBackwardArgs> layer_norm_backward;

}  // namespace tercet
