#include "kernels/emulator/shared_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/emulator/race_checker.h"
#include "kernels/emulator/sanitizer.h"

// The static variables of the .cu files, which are their __shared__ arrays, lie between these two: the linker lays out
// objects in the order of the sources in CMakeLists.txt.
extern "C" char tercet_emu_shared_begin[];
extern "C" char tercet_emu_shared_end[];

namespace tercet::emu {
namespace {

constexpr size_t kAlignment = 128;
constexpr size_t kPage = 4096;
constexpr size_t kPages = round_up(kMaxSharedBytes, kPage);

std::byte* dynamic_pages() {
  static std::byte* const pages = [] {
    void* memory = mmap(nullptr, kPages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_errno("no memory for shared memory", "emu");
    mprotect(static_cast<std::byte*>(memory) + kPages, kPage, PROT_NONE);
    return static_cast<std::byte*>(memory);
  }();
  return pages;
}

// ASan's zones between arrays are overwritten too, which it would report of memset.
__attribute__((no_sanitize("address"))) void poison_static() {
  if constexpr (kAddressSanitizer)
    for (volatile char* byte = tercet_emu_shared_begin; byte < tercet_emu_shared_end; ++byte) *byte = '\xFF';
  else
    std::memset(tercet_emu_shared_begin, 0xFF, static_cast<size_t>(tercet_emu_shared_end - tercet_emu_shared_begin));
}

}  // namespace

void* dynamic_shared(size_t bytes) { return dynamic_pages() + kPages - round_up(bytes, kAlignment); }

void open_dynamic_shared(size_t bytes) {
  poison_region(dynamic_pages(), kPages);
  unpoison_region(dynamic_shared(bytes), bytes);
}

void poison_shared(size_t dynamic_bytes) {
  poison_static();
  if (dynamic_bytes > 0) std::memset(dynamic_shared(dynamic_bytes), 0xFF, dynamic_bytes);
}

bool is_shared(const void* address, size_t bytes, size_t dynamic_bytes) {
  const auto* first = static_cast<const char*>(address);
  const auto* dynamic = static_cast<const char*>(dynamic_shared(dynamic_bytes));
  return (first >= tercet_emu_shared_begin && first + bytes <= tercet_emu_shared_end) ||
         (first >= dynamic && first + bytes <= dynamic + dynamic_bytes);
}

void watch_shared() {
  if constexpr (race::kChecked) {
    race::watch(dynamic_pages(), kPages, race::Memory::shared);
    race::watch(tercet_emu_shared_begin, static_cast<size_t>(tercet_emu_shared_end - tercet_emu_shared_begin),
                race::Memory::shared);
  }
}

}  // namespace tercet::emu
