// Accesses to memory that is not there, told apart: by a kernel (its failure, thrown at synchronize), or by host code
// that touches device memory (a message before the process ends). Neither in builds with AddressSanitizer, which
// reports faults itself.
#pragma once

#include <signal.h>

namespace tercet::emu {

// From now on, explains faults of host code in device memory; then the handlers that were there go on.
void explain_host_faults();

// While one lives on the OS thread that runs kernels, their faults end the kernel.
class KernelFaultScope {
 public:
  KernelFaultScope();
  ~KernelFaultScope();
  KernelFaultScope(const KernelFaultScope&) = delete;
  KernelFaultScope& operator=(const KernelFaultScope&) = delete;

 private:
  bool installed_ = false;
};

}  // namespace tercet::emu
