// Devices that lie in shared libraries of their own, together with the kernels that they run: libtercet_cuda.so and
// libtercet_emu.so. They are opened when such a device is asked for, so that tercet starts without them.
#pragma once

#include <memory>

#include "device/device.h"

namespace tercet {

// Opens the library beside the executable or in the folder above it, or the one that the environment variable
// TERCET_CUDA_LIBRARY or TERCET_EMU_LIBRARY names; it stays loaded. Throws Error(Fault::input) that says what is
// missing.
std::unique_ptr<Device> open_cuda();
std::unique_ptr<Device> open_emulator();

// How many GPUs this build and machine offer; 0 when the library is not there.
int cuda_gpus();

}  // namespace tercet
