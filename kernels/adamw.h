// AdamW on a flat segment. I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2019; PyTorch's form.
#pragma once

#include "kernels/op.h"

namespace tercet {

// g = gradient_scale gradient;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// update = -lr weight_decay master - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon);
// master = master + update;  weights = master rounded to their dtype;  gradient = update.
// Nothing is changed when control[1] is not 0.
struct AdamWArgs {
  Tensor weights;   // [n]
  Tensor master;    // [n] statistics dtype of the weights; not given when the weights are the master (fp32, fp64)
  Tensor gradient;  // [n] dtype of the master; becomes the update
  Tensor m, v;      // [n] dtype of the master
  Tensor control;   // [2] fp64 on the device: gradient_scale (clip factor times inverse loss scale), skip flag
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;  // from 1
};
extern const Op<AdamWArgs> adamw;

// sum[0] += sum_i x_i^2 in fp64, by blocks of a fixed size (a non-finite element makes it non-finite).
struct SumOfSquaresArgs {
  Tensor x;    // [n]
  Tensor sum;  // [1] fp64, accumulated
};
extern const Op<SumOfSquaresArgs> sum_of_squares;

// average = decay average + (1 - decay) x
struct MovingAverageArgs {
  Tensor average;  // [n] fp32 or fp64, in place
  Tensor x;        // [n]
  double decay = 0;
};
extern const Op<MovingAverageArgs> moving_average;

}  // namespace tercet
