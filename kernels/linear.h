// Linear layer with bias and activation. Weights are stored [out, in], as Hugging Face stores them.
#pragma once

#include "kernels/op.h"

namespace tercet {

enum class Activation {
  none,
  relu,
  gelu,  // exact: x Phi(x), Phi by erf
};

// pre = alpha x W^T + bias (+ out when `accumulate`);  out = activation(pre)
// A low-rank pair (LoRA) is two more calls: hidden = x A^T, then out += scale hidden B^T before an activation of its
// own.
struct LinearForwardArgs {
  Tensor x;       // [T, K], any pitch
  Tensor weight;  // [M, K]
  Tensor bias;    // [M] or not given
  Tensor out;     // [T, M], any pitch; written (accumulated when `accumulate`, allowed without activation only);
                  // statistics dtype is allowed without bias and activation
  Tensor pre_activation;  // [T, M] written; gelu with a backward pass to come, else not given
  Activation activation = Activation::none;
  double alpha = 1;
  bool accumulate = false;
};
extern const Op<LinearForwardArgs> linear_forward;

// First d_out becomes the gradient of `pre`: d_out *= activation'(pre), in place (relu: by out > 0; derivative 0 at 0).
// d_x = alpha d_out W                     (written, or accumulated when `accumulate_d_x`)
// d_weight += alpha d_out^T x;  d_bias += sum_t d_out[t]
struct LinearBackwardArgs {
  Tensor d_out;           // [T, M]; overwritten when there is an activation
  Tensor x;               // [T, K]; may be undefined when d_weight is
  Tensor weight;          // [M, K]; may be undefined when d_x is
  Tensor out;             // [T, M], relu only
  Tensor pre_activation;  // [T, M], gelu only
  Tensor d_x;             // [T, K] or not given
  Tensor d_weight;        // [M, K] accumulated, or not given
  Tensor d_bias;          // [M] accumulated, or not given
  Activation activation = Activation::none;
  double alpha = 1;
  bool accumulate_d_x = false;
};
extern const Op<LinearBackwardArgs> linear_backward;

}  // namespace tercet
