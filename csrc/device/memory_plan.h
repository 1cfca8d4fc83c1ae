// The memory of a run is planned, printed, allocated once, and handed out by name.
//
// Each component lists its slots with footprint(options) and is constructed from slots of the same list, taken from an
// Arena. The Arena refuses a slot that was not planned, one of another size and one taken twice, so the printed plan
// and the run cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"

namespace tercet {

enum class MemoryClass { parameters, gradients, optimizer, activations, workspace, kv_cache, batch };
inline constexpr int kMemoryClasses = 7;

// "parameters", "gradients", "optimizer", "activations", "workspace", "kv cache", "batch".
const char* memory_class_name(MemoryClass memory_class);

// Phases of a training step, in their order. Slots whose ranges of phases do not meet share bytes.
enum class Phase { rollout, score, train_actor, train_critic, evaluate, save };

// A piece of memory that a component needs from its first phase to its last, both included.
struct Slot {
  std::string name;
  MemoryClass memory_class = MemoryClass::workspace;
  size_t bytes = 0;
  Phase first = Phase::rollout;
  Phase last = Phase::save;
};

// All slots of a run and where each lies in one allocation.
class MemoryPlan {
 public:
  static constexpr size_t kAlignment = 256;

  void add(const std::vector<Slot>& slots);
  // Memory that the device has allocated already, beside the one allocation (Device::stream_footprint()).
  void add_outside(const std::vector<Slot>& slots);

  // Gives every slot an offset: first fit, larger slots first, over intervals of phases. Throws Error(Fault::run) when
  // two slots have one name.
  void place();

  const std::vector<Slot>& slots() const { return slots_; }
  size_t offset(const std::string& name) const;
  const Slot& slot(const std::string& name) const;
  // Size of the one allocation. At most the sum of the slots; smaller when phases let slots share.
  size_t total_bytes() const { return total_bytes_; }
  // Of what lies outside: of all, or of a class.
  size_t outside_bytes() const;
  size_t outside_bytes(MemoryClass memory_class) const;
  // Sum of the slots of a class, each rounded up to the alignment, and of what lies outside.
  size_t class_bytes(MemoryClass memory_class) const;

  // A table for the terminal: bytes per class, their sum, and what is allocated.
  std::string table() const;

 private:
  std::vector<Slot> slots_, outside_;
  std::map<std::string, size_t> index_;
  std::vector<size_t> offsets_;
  size_t total_bytes_ = 0;
};

// "1.5 MiB"
std::string format_bytes(size_t bytes);

// The one allocation of a run. A device has one arena at a time.
class Arena {
 public:
  // Allocates plan.total_bytes() on the device.
  Arena(Device& device, MemoryPlan plan);

  Device& device() { return device_; }
  const MemoryPlan& plan() const { return plan_; }

  // The memory of a planned slot as a contiguous view. Throws Error unless a slot of exactly this name and size was
  // planned and not yet taken.
  Tensor take(const std::string& name, DType dtype, std::initializer_list<int64_t> shape);

  // Throws Error that names a planned slot which nobody took, or a class whose taken bytes differ from the plan's, or
  // when the device has allocated other bytes than the plan's.
  void require_all_taken() const;
  // With what lies outside.
  size_t taken_bytes(MemoryClass memory_class) const;

 private:
  Device& device_;
  MemoryPlan plan_;
  Buffer buffer_;
  std::map<std::string, bool> taken_;
};

}  // namespace tercet
