// What libtercet_cuda.so offers to csrc/device/device_library.cpp, which opens it.
#include "device/cuda_device.h"
#include "kernels/gpu_ops.h"

namespace {

tercet::Device::Implementation find_op(std::string_view op) {
  for (const tercet::gpu::OpImplementation& entry : tercet::gpu::op_implementations())
    if (op == entry.name) return entry.function;
  return nullptr;
}

}  // namespace

extern "C" {

// A new device, owned by the caller. Throws tercet::Error that says what is missing.
__attribute__((visibility("default"))) tercet::Device* tercet_cuda_open() {
  return tercet::open_cuda_device(find_op).release();
}

// How many GPUs this machine offers.
__attribute__((visibility("default"))) int tercet_cuda_count() { return tercet::cuda_device_count(); }
}
