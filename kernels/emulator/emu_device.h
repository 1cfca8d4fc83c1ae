// The `emu` device: memory, streams and kernels of a GPU on the CPU, thread by thread.
#pragma once

#include <span>
#include <vector>

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
  // The scratch memory of each stream counts as a GPU's does, whole from the start, although pages come with their use.
  std::vector<Slot> stream_footprint() const override;
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
  Implementation implementation(std::string_view op) const override;

  void stream_begins();
  void stream_ends();

 private:
  size_t streams_ = 0;
  std::span<const gpu::OpImplementation> ops_;
};

}  // namespace tercet::emu
