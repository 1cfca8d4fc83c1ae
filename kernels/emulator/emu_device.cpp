#include "kernels/emulator/emu_device.h"

#include "base/error.h"
#include "device/memory_plan.h"
#include "kernels/emulator/device_memory.h"
#include "kernels/emulator/emu_stream.h"
#include "kernels/emulator/fault_handler.h"
#include "kernels/emulator/settings.h"

namespace tercet::emu {

EmuDevice::EmuDevice(std::span<const gpu::OpImplementation> ops) : ops_(ops) {
  settings() = settings_from_environment();
  explain_host_faults();
}

std::string EmuDevice::description() const {
  return fmt::format("emu (CUDA kernels on the CPU; {})", describe(settings()));
}

bool EmuDevice::supports(DType dtype) const {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::unique_ptr<Stream> EmuDevice::create_stream() { return std::make_unique<EmuStream>(*this); }

std::vector<Slot> EmuDevice::stream_footprint() const {
  return {{"streams/scratch", MemoryClass::workspace, streams_ * GpuStream::kWorkspaceBytes}};
}

void EmuDevice::stream_begins() {
  ++streams_;
  allocated_bytes_ += GpuStream::kWorkspaceBytes;
}

void EmuDevice::stream_ends() {
  --streams_;
  allocated_bytes_ -= GpuStream::kWorkspaceBytes;
}

void* EmuDevice::allocate(size_t bytes) {
  void* memory = DeviceMemory::instance().allocate(bytes);
  allocated_bytes_ += bytes;
  return memory;
}

void EmuDevice::release(void* memory, size_t bytes) {
  DeviceMemory::instance().release(memory);
  allocated_bytes_ -= bytes;
}

Device::Implementation EmuDevice::implementation(std::string_view op) const {
  for (const gpu::OpImplementation& entry : ops_)
    if (op == entry.name) return entry.function;
  return nullptr;
}

}  // namespace tercet::emu
