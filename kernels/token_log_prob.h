// Log-probability of the next token and entropy of its distribution, forward and backward, on a chunk of logits.
#pragma once

#include "kernels/op.h"

namespace tercet {

// With z = logits / temperature:
// log_sum_exp = log sum_j exp(z_j);  log_prob = z_target - log_sum_exp;  entropy = -sum_j p_j log p_j;
// likeliest = 1 when no z_j is larger than z_target, else 0
struct TokenLogProbForwardArgs {
  Tensor logits;       // [R, V]
  Tensor targets;      // [R] int32
  Tensor log_prob;     // [R] statistics dtype, written
  Tensor log_sum_exp;  // [R] statistics dtype, written, or not given
  Tensor entropy;      // [R] statistics dtype, written, or not given
  Tensor likeliest;    // [R] statistics dtype, written, or not given
  double temperature = 1;
};
// Throws Error(Fault::run) naming the first target outside the vocabulary.
extern const Op<TokenLogProbForwardArgs> token_log_prob_forward;

// logits become their own gradient, in place:
// d_logits_j = (d_log_prob (1[j = target] - p_j) - d_entropy p_j (log p_j + entropy)) / temperature
struct TokenLogProbBackwardArgs {
  Tensor logits;       // [R, V], in place
  Tensor targets;      // [R] int32
  Tensor log_sum_exp;  // [R]
  Tensor entropy;      // [R], given exactly when d_entropy is
  Tensor d_log_prob;   // [R]
  Tensor d_entropy;    // [R] or not given
  double temperature = 1;
};
extern const Op<TokenLogProbBackwardArgs> token_log_prob_backward;

}  // namespace tercet
