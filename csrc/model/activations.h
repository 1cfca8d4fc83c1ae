// The tensors behind Activations; seen by model/ alone.
#pragma once

#include "model/model.h"

namespace tercet {

// What one block keeps for its backward pass. Tensors have capacity rows; a step uses the first T.
struct LayerActivations {
  Tensor input;  // [T, H] input of the block: before its first norm (pre-norm), after the last norm of the block below
                 // (post-norm)
  Tensor norm1;  // [T, H] output of the attention norm
  Tensor mean1, rstd1;       // [T]
  Tensor qkv;                // [T, 3H]
  Tensor attended;           // [T, H] output of attention, before its projection
  Tensor log_sum_exp;        // [T, N]
  Tensor middle;             // [T, H] pre-norm: residual stream after attention; post-norm: the same before its norm
  Tensor norm2;              // [T, H] pre-norm: output of the second norm; post-norm: sum before the last norm
  Tensor mean2, rstd2;       // [T]
  Tensor hidden;             // [T, F] output of the activation
  Tensor before_activation;  // [T, F] gelu only
};

struct Activations::Data {
  OptConfig config;
  ActivationOptions options;
  int64_t tokens = 0;  // of the latest forward
  bool backward_possible = false;
  std::vector<LayerActivations> layers;
  Tensor embedded;                // [T, E] token embeddings before project_in; projections only
  Tensor stream;                  // [T, H] output of the projection that was computed last
  Tensor final_sum;               // [T, H] input of the final norm
  Tensor final_mean, final_rstd;  // [T]
  Tensor top;                     // [T, H] the last hidden state before project_out; `output` when there is none
  Tensor output;                  // [T, E]
  // Training only.
  Tensor d_output;    // [T, E]
  Tensor d_stream;    // [T, H] gradient of the residual stream
  Tensor d_branch;    // [T, H]
  Tensor d_norm;      // [T, H]
  Tensor d_wide;      // flat, room for [T, 3H] or [T, F]
  Tensor d_embedded;  // [T, E]
};

}  // namespace tercet
