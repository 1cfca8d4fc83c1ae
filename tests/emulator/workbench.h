// A device with a stream and vectors that go there and back.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/gpu_stream.h"

#if defined(TERCET_CERTIFY_CUDA)
#include "device/cuda_device.h"
// The device of this binary's own CUDA runtime, which knows its kernels.
inline std::unique_ptr<tercet::Device> open_bench_device() {
  return tercet::open_cuda_device([](std::string_view) -> tercet::Device::Implementation { return nullptr; });
}
#else
#include "kernels/emulator/emu_device.h"
#include "kernels/emulator/settings.h"
inline std::unique_ptr<tercet::Device> open_bench_device() {
  return std::make_unique<tercet::emu::EmuDevice>(std::span<const tercet::gpu::OpImplementation>{});
}
#endif

namespace tercet::test {

class Bench {
 public:
  Bench() : device_(open_bench_device()), stream_(device_->create_stream()) {}

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  GpuStream& gpu_stream() { return static_cast<GpuStream&>(*stream_); }

  // New memory of the device that holds `values`.
  template <class T>
  T* put(const std::vector<T>& values) {
    T* memory = empty<T>(values.size());
    stream_->copy_to_device(memory, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return memory;
  }

  template <class T>
  T* empty(size_t count) {
    return static_cast<T*>(buffers_.emplace_back(*device_, count * sizeof(T)).data());
  }

  // Runs all that is queued.
  template <class T>
  std::vector<T> get(const T* memory, size_t count) {
    std::vector<T> values(count);
    stream_->copy_to_host(values.data(), memory, count * sizeof(T));
    stream_->synchronize();
    return values;
  }

  // The message with which the queued work fails, or "".
  std::string failure() {
    try {
      stream_->synchronize();
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;  // destroyed first, since it runs what is still queued
};

#if !defined(TERCET_CERTIFY_CUDA)
// Calls body(bench) under each order of threads, blocks and streams, and each time of landing.
inline void in_every_order(const std::function<void(Bench&)>& body) {
  using namespace emu;
  for (const CopyLanding copy : {CopyLanding::late, CopyLanding::early})
    for (const Settings& order : {Settings{Order::fifo, 1, copy}, Settings{Order::lifo, 1, copy},
                                  Settings{Order::random, 1, copy}, Settings{Order::random, 2, copy}}) {
      Bench bench;
      settings() = order;
      const std::string how = describe(order);
      INFO(how);
      body(bench);
    }
}
#else
inline void in_every_order(const std::function<void(Bench&)>& body) {
  Bench bench;
  body(bench);
}
#endif

inline void check_contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK_MESSAGE(text.find(part) != std::string::npos, "expected: " << part);
}

}  // namespace tercet::test
