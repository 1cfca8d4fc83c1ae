// Matrix products of the emulated device: 16-bit operands widened to fp32, the system's BLAS, one rounding.
#pragma once

#include "device/gpu_stream.h"

namespace tercet::emu {

// Throws Error(Fault::run) unless the operands fit each other and lie in allocations of the device.
void require_emulated_product(const Product& product);

// Computes a product whose operands are accessible.
void compute_product(const Product& product);

}  // namespace tercet::emu
