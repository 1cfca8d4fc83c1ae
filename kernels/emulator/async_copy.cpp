// cp.async: copies of 16 bytes from device to shared memory that land at a wait, or at once.
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "kernels/emulator/block_runner.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/race_checker.h"
#include "kernels/emulator/source_line.h"

namespace tercet::emu {
namespace {

constexpr size_t kCopyBytes = 16;

void touch(const void* address, race::Access access, uintptr_t code) {
  if constexpr (race::kChecked) race::touch(current_thread->number, address, kCopyBytes, access, code);
}

void land(const AsyncCopy& copy) {
  if constexpr (race::kChecked) race::end_copy(copy.shared, kCopyBytes);
  touch(copy.shared, race::Access::write, copy.code);
  if (!copy.valid) {
    std::memset(copy.shared, 0, kCopyBytes);
    return;
  }
  touch(copy.global, race::Access::read, copy.code);
  std::memcpy(copy.shared, copy.global, kCopyBytes);
}

}  // namespace

void copy_async16(void* shared, const void* global, bool valid, Site site) {
  const auto code = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1;
  const auto misaligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % kCopyBytes != 0; };
  if (misaligned(shared) || misaligned(global))
    fail_thread("an address of an asynchronous copy is not a multiple of 16", site);
  if (!in_shared_memory(shared, kCopyBytes))
    fail_thread("the target of an asynchronous copy is not in shared memory", site);
  ++statistics().asynchronous_copies;
  const AsyncCopy copy{shared, global, valid, site, code};
  if (settings().copy == CopyLanding::early) return land(copy);
  // Whoever reads before the wait gets NaNs, also from memory that held the right values before.
  if constexpr (race::kChecked) race::begin_copy(current_thread->number, shared, kCopyBytes, code);
  std::memset(shared, 0xFF, kCopyBytes);
  block_runner().thread().copies.push_back(copy);
}

void copy_async_commit() {
  Thread& thread = block_runner().thread();
  thread.groups.push_back(thread.copies.size());
}

void copy_async_wait(int pending) {
  Thread& thread = block_runner().thread();
  if (static_cast<int>(thread.groups.size()) <= pending) return;
  const size_t groups = thread.groups.size() - static_cast<size_t>(pending);
  const size_t copies = thread.groups[groups - 1];
  for (size_t i = 0; i < copies; ++i) land(thread.copies[i]);
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(copies));
  thread.groups.erase(thread.groups.begin(), thread.groups.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t& end : thread.groups) end -= copies;
}

void note_atomic(const void* address, size_t bytes, const void* code) {
  if constexpr (race::kChecked)
    race::touch(current_thread->number, address, bytes, race::Access::atomic, reinterpret_cast<uintptr_t>(code) - 1);
}

}  // namespace tercet::emu
