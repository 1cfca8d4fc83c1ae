// What the makers of devices say of their speed: data sheets of NVIDIA A100, H100 and H200, without sparsity.
#pragma once

#include <string>

#include "device/dtype.h"

namespace tercet {

// The data sheet's dense FLOP per second of tensor cores for a Device::description(); 0 when it is not known.
double known_peak(const std::string& description, DType dtype);

}  // namespace tercet
