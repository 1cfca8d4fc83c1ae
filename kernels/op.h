// kernels: one op = one name. `layer_norm.h` declares what the op computes, for every device; `layer_norm.cpp` is the
// CPU.
//
// Conventions of all ops
//   Letters: T tokens, B sequences, H hidden, N heads, D head size, F feed-forward, V vocabulary, R rows.
//   Batches are ragged: sequence b owns rows [offsets[b], offsets[b+1]) of a [T, ...] tensor; there is no padding.
//   T = 0, B = 0 and R = 0 are legal and do nothing.
//   Element tensors share one dtype (fp32 or fp64 on the CPU). Statistics, log-probabilities and losses have
//   statistics_dtype(dtype). Ids and offsets are int32, sample numbers int64.
//   "written" means that the old contents do not matter; "accumulated" means that the result is added to them.
//   Parameter gradients are accumulated, everything else is written unless said otherwise. Sums run in an order fixed
//   by the shapes, never by the number of threads; nothing is allocated. A wrong shape or dtype throws
//   Error(Fault::run) before anything is written.
#pragma once

#include <array>
#include <atomic>
#include <span>

#include "device/device.h"
#include "device/profile_scope.h"
#include "device/tensor.h"

namespace tercet {

// A named op with one implementation per kind of device.
template <class Args>
class Op {
 public:
  using Function = void (*)(Stream&, const Args&);

  constexpr Op(const char* name, Function cpu) : name_(name), cpu_(cpu) {}
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  const char* name() const { return name_; }

  // Queues the op on the stream. Throws Error(Fault::run) when the stream's device has no implementation.
  void operator()(Stream& stream, const Args& args) const {
    const Device& device = stream.device();
    const Function function = device.kind() == DeviceKind::cpu ? cpu_ : gpu_implementation(device);
    const ProfileScope scope(stream, name_);
    function(stream, args);
  }

 private:
  // Asks the device once per kind: libraries of kernels stay loaded.
  Function gpu_implementation(const Device& device) const {
    std::atomic<Function>& known = gpu_[device.kind() == DeviceKind::cuda ? 0 : 1];
    Function function = known.load(std::memory_order_relaxed);
    if (function != nullptr) return function;
    function = reinterpret_cast<Function>(device.implementation(name_));
    TERCET_REQUIRE(function != nullptr, "{} has no implementation on {}", name_, device_name(device.kind()));
    known.store(function, std::memory_order_relaxed);
    return function;
  }

  const char* name_;
  Function cpu_;
  mutable std::array<std::atomic<Function>, 2> gpu_{};  // cuda, emu
};

}  // namespace tercet
