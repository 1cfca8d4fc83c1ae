// Sampling of the next token by the Gumbel-max trick: argmax_j z_j - log(-log u_j) is a draw from softmax(z).
#pragma once

#include "base/rng.h"
#include "kernels/op.h"

namespace tercet {

// z = logits / temperature; with temperature 0 the smallest index of the largest logit is taken (greedy).
// top_k > 0 keeps the k largest logits, ties at the limit kept by smallest index; top_p < 1 then keeps the smallest set
// of most probable tokens (of softmax(z) over what top_k left) whose probability reaches top_p, ties by smallest index.
// u_j is the uniform number of RandomStream(key) at (samples[s], positions[s], lane j).
// log_prob[s] = log softmax(z)[id] over the whole vocabulary (temperature 1 when greedy). A row that holds a NaN gives
// some id and a log_prob of NaN.
struct SampleArgs {
  Tensor logits;     // [S, V]
  Tensor samples;    // [S] int64
  Tensor positions;  // [S] int32
  Tensor ids;        // [S] int32, written
  Tensor log_prob;   // [S] statistics dtype, written
  Tensor scratch;    // [S, V] dtype of logits; given exactly when top_k or top_p is in use
  uint64_t key = 0;
  double temperature = 1;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;   // 1: all
};
extern const Op<SampleArgs> sample;

}  // namespace tercet
