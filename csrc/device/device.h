// Device, Stream, Event and Buffer: the only way to memory and to ordered work, the same for every kind of device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/tensor.h"

namespace tercet {

class Device;
struct Slot;

// A mark in a stream's order of work.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the host until the work before the mark is done.
  virtual void synchronize() = 0;
};

// An ordered queue of work on one device. Host memory that a queued copy reads or writes must live until the stream is
// synchronised.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  virtual void copy_to_device(void* target, const void* host_source, size_t bytes) = 0;
  virtual void copy_to_host(void* host_target, const void* source, size_t bytes) = 0;
  virtual void copy_on_device(void* target, const void* source, size_t bytes) = 0;
  virtual void fill_zero(void* target, size_t bytes) = 0;
  virtual std::unique_ptr<Event> record() = 0;
  virtual void wait(Event& event) = 0;
  // Blocks the host until all queued work is done.
  virtual void synchronize() = 0;
  // Begin and end of a named part of the work, for profilers; parts nest (profile_scope.h). Devices without one do
  // nothing. The text is copied.
  virtual void begin_profile_range(const char*) {}
  virtual void end_profile_range() {}
};

// Fills a contiguous tensor of the stream's device with zeros.
void fill_zero(Stream& stream, const Tensor& tensor);

// One device: its memory, its streams and what it computes with.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // "cpu (avx512, 2 threads)"
  virtual std::string description() const = 0;
  // Whether the device computes in this floating dtype.
  virtual bool supports(DType dtype) const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // The memory of the device that the streams hold which exist now. The plan of a run lists it beside its own.
  virtual std::vector<Slot> stream_footprint() const;
  // Memory aligned to 256 bytes; throws Error(Fault::run) with the number of bytes when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;

  // The function that queues the op of this name on a stream of the device, its type erased (kernels/op.h knows it), or
  // nullptr when the device has none. Devices whose kernels lie in a library of their own bring them in this way.
  using Implementation = void (*)();
  virtual Implementation implementation(std::string_view) const { return nullptr; }

  // Bytes allocated and not yet released.
  size_t allocated_bytes() const { return allocated_bytes_; }

 protected:
  size_t allocated_bytes_ = 0;
};

// Owns memory of a device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// The device called `name` (auto, cpu, cuda or emu); auto is the best that this build and machine offer. Throws
// Error(Fault::input) that says what is missing.
std::unique_ptr<Device> open_device(const std::string& name);

}  // namespace tercet
