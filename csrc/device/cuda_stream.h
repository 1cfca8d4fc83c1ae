// The stream of the `cuda` device. No CUDA header is needed to launch on it.
#pragma once

#include "device/gpu_stream.h"

namespace tercet {

class CudaStream : public GpuStream {
 public:
  // Queues a kernel that nvcc compiled. `addresses` points at its parameters, which are copied before the call returns.
  // Throws Error(Fault::run) that names the kernel when the launch is refused.
  virtual void launch_kernel(const char* name, const void* kernel, const LaunchShape& shape, void** addresses) = 0;
};

}  // namespace tercet
