// FLOP of a model, of which utilisation is counted.
#pragma once

#include <cstdint>
#include <span>

#include "model/model.h"

namespace tercet {

// FLOP of a model's forward pass over sequences of these lengths, `head_rows` of whose tokens go through the head: 2
// per weight of a matrix and token, 2 per weight of the head and row, and 2 L^2 H per block in causal attention over a
// sequence of length L. A training step takes three times as many. Recomputation is not counted.
double forward_flops(const OptConfig& config, Head head, std::span<const int64_t> lengths, int64_t head_rows);

}  // namespace tercet
