// The `emu` device: memory, streams and kernels of a GPU on the CPU, thread by thread.
#pragma once

#include <span>

#include "device/device.h"
#include "kernels/gpu_ops.h"

namespace tercet::emu {

class EmuDevice final : public Device {
 public:
  // Offers `ops`, which must outlive the device. Takes the settings from the environment.
  explicit EmuDevice(std::span<const gpu::OpImplementation> ops);

  DeviceKind kind() const override { return DeviceKind::emu; }
  // "emu (CUDA kernels on the CPU; order fifo, copies late)"
  std::string description() const override;
  bool supports(DType dtype) const override;
  std::unique_ptr<Stream> create_stream() override;
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
  Implementation implementation(std::string_view op) const override;

 private:
  std::span<const gpu::OpImplementation> ops_;
};

}  // namespace tercet::emu
