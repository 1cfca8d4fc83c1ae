#include "device/device.h"

#include <utility>

#include "device/cpu_device.h"
#include "device/device_library.h"
#include "device/memory_plan.h"

namespace tercet {

std::vector<Slot> Device::stream_footprint() const { return {}; }

void fill_zero(Stream& stream, const Tensor& tensor) {
  TERCET_REQUIRE(tensor.contiguous(), "{} is to be filled with zeros, but has gaps (pitch {})", tensor.describe(),
                 tensor.pitch);
  stream.fill_zero(tensor.data, static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
}

Buffer::Buffer(Device& device, size_t bytes) : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::unique_ptr<Device> open_device(const std::string& name) {
  if (name == "cuda" || (name == "auto" && cuda_gpus() > 0)) return open_cuda();
  if (name == "emu") return open_emulator();
  if (name == "cpu" || name == "auto") return std::make_unique<CpuDevice>();
  fail_input(fmt::format("unknown device \"{}\"", name), "--device", "use auto, cpu, cuda or emu");
}

}  // namespace tercet
