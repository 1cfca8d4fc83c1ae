// The `cuda` device: one NVIDIA GPU of compute capability 8.0 or newer, through the CUDA runtime.
#pragma once

#include <memory>
#include <string_view>

#include "device/device.h"

namespace tercet {

// Opens the GPU whose index is the local rank of this process (0 without a launcher). `find_op` gives the launcher of
// an op by name. Throws Error(Fault::input) that says what is missing: driver, GPU, or an architecture new enough.
std::unique_ptr<Device> open_cuda_device(Device::Implementation (*find_op)(std::string_view));

// How many GPUs this machine offers; 0 without a driver.
int cuda_device_count();

}  // namespace tercet
