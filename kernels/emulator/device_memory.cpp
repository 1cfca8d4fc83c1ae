#include "kernels/emulator/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/emulator/race_checker.h"
#include "kernels/emulator/sanitizer.h"

namespace tercet::emu {
namespace {

constexpr size_t kPage = 4096;
// Address space, of which nothing is used until it is allocated. The race checker needs 18 times as much beside it.
constexpr size_t kArenaBytes = race::kChecked ? size_t{16} << 30 : size_t{256} << 30;

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory& memory = *new DeviceMemory;  // outlives every device
  return memory;
}

DeviceMemory::DeviceMemory() {
  void* arena = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) fail_errno("no address space for device memory", "emu");
  arena_ = static_cast<std::byte*>(arena);
  if constexpr (race::kChecked) race::watch(arena_, kArenaBytes, race::Memory::device);
}

// Freed ranges rest as long as there is untouched address space, so that use after release is seen.
std::byte* DeviceMemory::take_range(size_t bytes) {
  if (bytes <= kArenaBytes - arena_used_) {
    arena_used_ += bytes;
    return arena_ + (arena_used_ - bytes);
  }
  const auto fit = free_ranges_.lower_bound(bytes);
  if (fit == free_ranges_.end()) return nullptr;
  std::byte* range = fit->second;
  free_ranges_.erase(fit);
  return range;
}

void* DeviceMemory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t aligned = round_up(std::max<size_t>(bytes, 1), kAlignment);
  const size_t page_bytes = round_up(aligned, kPage);
  std::byte* pages = take_range(page_bytes + kPage);
  if (pages == nullptr || mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0)
    fail_run(fmt::format("not enough memory for {} bytes", bytes), "emu",
             "use a smaller --micro-batch-tokens or --recompute");
  std::byte* address = pages + (page_bytes - aligned);
  unpoison_region(pages, page_bytes);
  std::memset(pages, 0xFF, page_bytes);
  poison_region(pages, static_cast<size_t>(address - pages));
  poison_region(address + bytes, aligned - bytes);
  const Allocation& allocation = allocations_[address] = {pages, page_bytes, bytes};
  if (open_ == 0) protect(allocation, PROT_NONE);
  return address;
}

void DeviceMemory::release(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(memory));
  TERCET_REQUIRE(found != allocations_.end(), "memory is released that was not allocated");
  const Allocation allocation = found->second;
  allocations_.erase(found);
  protect(allocation, PROT_NONE);
  madvise(allocation.pages, allocation.page_bytes, MADV_DONTNEED);
  free_ranges_.emplace(allocation.page_bytes + kPage, allocation.pages);
}

void DeviceMemory::require(const void* address, size_t bytes, const std::string& what) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  auto* first = static_cast<std::byte*>(const_cast<void*>(address));
  const auto after = allocations_.upper_bound(first);
  if (after != allocations_.begin()) {
    const auto& [begin, allocation] = *std::prev(after);
    if (bytes <= allocation.bytes && first + bytes <= begin + allocation.bytes) return;
  }
  fail_run(fmt::format("{} of {} bytes does not lie in an allocation of the device: it starts at {}", what, bytes,
                       describe(address)),
           "emu");
}

bool DeviceMemory::owns(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return byte >= arena_ && byte < arena_ + kArenaBytes;
}

std::string DeviceMemory::describe(const void* address) {
  if (!owns(address)) return fmt::format("{}, not device memory", address);
  const std::lock_guard lock(mutex_);
  auto* byte = static_cast<std::byte*>(const_cast<void*>(address));
  for (const auto& [begin, allocation] : allocations_) {
    const std::byte* guard_end = allocation.pages + allocation.page_bytes + kPage;
    if (byte < allocation.pages || byte >= guard_end) continue;
    if (byte < begin) return fmt::format("{} bytes before an allocation of {} bytes", begin - byte, allocation.bytes);
    return fmt::format("byte {} of an allocation of {} bytes", byte - begin, allocation.bytes);
  }
  return "memory that is not allocated";
}

void DeviceMemory::protect(const Allocation& allocation, int protection) {
  if (mprotect(allocation.pages, allocation.page_bytes, protection) != 0) fail_errno("mprotect", "emu");
}

void DeviceMemory::open() {
  const std::lock_guard lock(mutex_);
  if (open_++ > 0) return;
  for (const auto& [address, allocation] : allocations_) protect(allocation, PROT_READ | PROT_WRITE);
}

void DeviceMemory::close() {
  const std::lock_guard lock(mutex_);
  if (--open_ > 0) return;
  for (const auto& [address, allocation] : allocations_) protect(allocation, PROT_NONE);
}

DeviceMemory::Access::Access(DeviceMemory& memory) : memory_(memory) { memory_.open(); }
DeviceMemory::Access::~Access() { memory_.close(); }

}  // namespace tercet::emu
