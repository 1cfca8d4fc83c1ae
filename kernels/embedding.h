// Embedding: rows of a table by id.
#pragma once

#include "kernels/op.h"

namespace tercet {

// out[t] = table[ids[t] + row_offset]            (+ out[t] when `accumulate`)
struct EmbeddingForwardArgs {
  Tensor ids;              // [T] int32
  Tensor table;            // [rows, H]
  Tensor out;              // [T, H]
  int64_t row_offset = 0;  // OPT's position table starts at row 2
  bool accumulate = false;
};
// Throws Error(Fault::run) naming the first id outside the table.
extern const Op<EmbeddingForwardArgs> embedding_forward;

// d_table[ids[t] + row_offset] += d_out[t], tokens taken in order (deterministic).
struct EmbeddingBackwardArgs {
  Tensor ids;      // [T] int32
  Tensor d_out;    // [T, H]
  Tensor d_table;  // [rows, H], accumulated
  int64_t row_offset = 0;
};
extern const Op<EmbeddingBackwardArgs> embedding_backward;

}  // namespace tercet
