// The CPU as a device: host memory, work that is done when the call returns, fp32 and fp64.
#pragma once

#include "device/device.h"

namespace tercet {

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override;
  bool supports(DType dtype) const override { return dtype == DType::f32 || dtype == DType::f64; }
  std::unique_ptr<Stream> create_stream() override;
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
};

}  // namespace tercet
