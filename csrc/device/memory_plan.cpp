#include "device/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tercet {
namespace {

bool phases_meet(const Slot& a, const Slot& b) { return a.first <= b.last && b.first <= a.last; }

size_t padded(const Slot& slot) { return round_up(slot.bytes, MemoryPlan::kAlignment); }

}  // namespace

const char* memory_class_name(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::parameters:
      return "parameters";
    case MemoryClass::gradients:
      return "gradients";
    case MemoryClass::optimizer:
      return "optimizer";
    case MemoryClass::activations:
      return "activations";
    case MemoryClass::workspace:
      return "workspace";
    case MemoryClass::kv_cache:
      return "kv cache";
    case MemoryClass::batch:
      return "batch";
  }
  return "unknown";
}

std::string format_bytes(size_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

void MemoryPlan::add(const std::vector<Slot>& slots) {
  for (const Slot& slot : slots) {
    TERCET_REQUIRE(index_.emplace(slot.name, slots_.size()).second, "two memory slots are called {}", slot.name);
    slots_.push_back(slot);
  }
}

void MemoryPlan::add_outside(const std::vector<Slot>& slots) {
  outside_.insert(outside_.end(), slots.begin(), slots.end());
}

void MemoryPlan::place() {
  std::vector<size_t> order(slots_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return slots_[a].bytes > slots_[b].bytes; });
  offsets_.assign(slots_.size(), 0);
  total_bytes_ = 0;
  std::vector<size_t> placed;  // by offset
  for (const size_t current : order) {
    size_t offset = 0;
    for (const size_t other : placed) {
      if (!phases_meet(slots_[current], slots_[other])) continue;
      if (offset + padded(slots_[current]) <= offsets_[other]) break;
      offset = std::max(offset, offsets_[other] + padded(slots_[other]));
    }
    offsets_[current] = offset;
    total_bytes_ = std::max(total_bytes_, offset + padded(slots_[current]));
    const auto position = std::upper_bound(placed.begin(), placed.end(), current,
                                           [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    placed.insert(position, current);
  }
}

const Slot& MemoryPlan::slot(const std::string& name) const {
  const auto found = index_.find(name);
  TERCET_REQUIRE(found != index_.end(), "the memory slot {} was not planned", name);
  return slots_[found->second];
}

size_t MemoryPlan::offset(const std::string& name) const {
  TERCET_REQUIRE(offsets_.size() == slots_.size(), "the memory plan is read before it is placed");
  const auto found = index_.find(name);
  TERCET_REQUIRE(found != index_.end(), "the memory slot {} was not planned", name);
  return offsets_[found->second];
}

size_t MemoryPlan::outside_bytes() const {
  size_t sum = 0;
  for (const Slot& slot : outside_) sum += slot.bytes;
  return sum;
}

size_t MemoryPlan::outside_bytes(MemoryClass memory_class) const {
  size_t sum = 0;
  for (const Slot& slot : outside_)
    if (slot.memory_class == memory_class) sum += slot.bytes;
  return sum;
}

size_t MemoryPlan::class_bytes(MemoryClass memory_class) const {
  size_t sum = outside_bytes(memory_class);
  for (const Slot& slot : slots_)
    if (slot.memory_class == memory_class) sum += padded(slot);
  return sum;
}

std::string MemoryPlan::table() const {
  std::string text = "memory plan\n";
  size_t sum = 0;
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    const size_t bytes = class_bytes(memory_class);
    if (bytes == 0) continue;
    sum += bytes;
    text += fmt::format("  {:<12} {:>12} {:>16} bytes\n", memory_class_name(memory_class), format_bytes(bytes), bytes);
  }
  text += fmt::format("  {:<12} {:>12} {:>16} bytes\n", "sum", format_bytes(sum), sum);
  const size_t allocated = total_bytes_ + outside_bytes();
  text += fmt::format("  {:<12} {:>12} {:>16} bytes", "allocated", format_bytes(allocated), allocated);
  if (allocated < sum) text += fmt::format(" ({} shared between phases)", format_bytes(sum - allocated));
  return text;
}

Arena::Arena(Device& device, MemoryPlan plan) : device_(device), plan_(std::move(plan)) {
  plan_.place();
  buffer_ = Buffer(device, plan_.total_bytes());
}

Tensor Arena::take(const std::string& name, DType dtype, std::initializer_list<int64_t> shape) {
  const Slot& slot = plan_.slot(name);
  Tensor view(static_cast<std::byte*>(buffer_.data()) + plan_.offset(name), dtype, device_.kind(), shape);
  const size_t bytes = static_cast<size_t>(view.elements()) * dtype_size(dtype);
  TERCET_REQUIRE(bytes == slot.bytes, "the slot {} was planned with {} bytes and is taken as {} ({} bytes)", name,
                 slot.bytes, view.describe(), bytes);
  TERCET_REQUIRE(taken_.emplace(name, true).second, "the memory slot {} is taken twice", name);
  return view;
}

size_t Arena::taken_bytes(MemoryClass memory_class) const {
  size_t sum = plan_.outside_bytes(memory_class);
  for (const Slot& slot : plan_.slots())
    if (slot.memory_class == memory_class && taken_.contains(slot.name)) sum += padded(slot);
  return sum;
}

void Arena::require_all_taken() const {
  for (const Slot& slot : plan_.slots())
    TERCET_REQUIRE(taken_.contains(slot.name), "the memory slot {} was planned and never taken", slot.name);
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    TERCET_REQUIRE(taken_bytes(memory_class) == plan_.class_bytes(memory_class), "{}: {} bytes taken, {} planned",
                   memory_class_name(memory_class), taken_bytes(memory_class), plan_.class_bytes(memory_class));
  }
  const size_t planned = plan_.total_bytes() + plan_.outside_bytes();
  TERCET_REQUIRE(device_.allocated_bytes() == planned, "{} bytes are allocated on the device, {} are planned",
                 device_.allocated_bytes(), planned);
}

}  // namespace tercet
