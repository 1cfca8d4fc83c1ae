// What libtercet_emu.so offers to csrc/device/device_library.cpp, which opens it.
#include "kernels/emulator/emu_device.h"
#include "kernels/emulator/settings.h"
#include "kernels/gpu_ops.h"

extern "C" {

// A new device, owned by the caller.
__attribute__((visibility("default"))) tercet::Device* tercet_emulator_open() {
  return new tercet::emu::EmuDevice(tercet::gpu::op_implementations());
}

// Settings of all launches from now on, instead of those from the environment.
__attribute__((visibility("default"))) void tercet_emulator_set(const tercet::emu::Settings* settings) {
  tercet::emu::settings() = *settings;
}
}
