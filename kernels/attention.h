// Causal self-attention over ragged sequences, without a T x T matrix.
// Online softmax in blocks: T. Dao et al., "FlashAttention", 2022.
#pragma once

#include "kernels/op.h"

namespace tercet {

// For each sequence, head n (columns [n D, (n+1) D)) and query i: with s_j = (scale q_i) . k_j for j <= i in the
// sequence, out_i = sum_j softmax(s)_j v_j;  log_sum_exp[i, n] = log sum_j exp(s_j). q is scaled before the product, as
// OPT does (facts: the rounding differs in 16 bits otherwise).
struct AttentionForwardArgs {
  Tensor q, k, v;      // [T, H], any pitch (slices of [T, 3H])
  Tensor offsets;      // [B+1] int32, offsets[0] = 0, offsets[B] = T
  Tensor out;          // [T, H] written
  Tensor log_sum_exp;  // [T, N] statistics dtype, written; not given in inference
  int64_t heads = 1;
  double scale = 1;
};
extern const Op<AttentionForwardArgs> attention_forward;

// Recomputes softmax from log_sum_exp. With P the softmax, dP_ij = d_out_i . v_j, delta_i = d_out_i . out_i:
// d_v_j = sum_i P_ij d_out_i;  dS_ij = P_ij (dP_ij - delta_i);  d_q_i = scale sum_j dS_ij k_j;  d_k_j = sum_i dS_ij
// scale q_i
struct AttentionBackwardArgs {
  Tensor q, k, v;        // [T, H], any pitch
  Tensor offsets;        // [B+1] int32
  Tensor out;            // [T, H]
  Tensor log_sum_exp;    // [T, N]
  Tensor d_out;          // [T, H]
  Tensor d_q, d_k, d_v;  // [T, H], any pitch, written
  int64_t heads = 1;
  double scale = 1;
};
extern const Op<AttentionBackwardArgs> attention_backward;

}  // namespace tercet
