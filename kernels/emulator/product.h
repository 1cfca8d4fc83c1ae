// Matrix products of the emulated device: 16-bit operands widened to fp32, the system's BLAS, one rounding.
#pragma once

#include "device/gpu_stream.h"

namespace tercet::emu {

// Throws Error(Fault::run) for shapes and dtypes that do not fit together.
void require_product(const Product& product);

// Computes a product whose operands are accessible.
void compute_product(const Product& product);

}  // namespace tercet::emu
