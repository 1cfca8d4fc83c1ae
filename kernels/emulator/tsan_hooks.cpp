// What gcc's -fsanitize=thread calls, in place of the thread sanitizer: accesses by emulated threads go to the race
// checker, everything else is ignored. Linked into race builds only.
#if defined(TERCET_EMU_RACE)

#include <cstddef>
#include <cstdint>

#include "kernels/emulator/execution.h"
#include "kernels/emulator/race_checker.h"

using tercet::emu::race::Access;

namespace {

inline void touch(const volatile void* address, size_t bytes, Access access, void* caller) {
  const tercet::emu::ThreadPlace* thread = tercet::emu::current_thread;
  if (thread == nullptr) return;
  tercet::emu::race::touch(thread->number, const_cast<const void*>(address), bytes, access,
                           reinterpret_cast<uintptr_t>(caller) - 1);
}

}  // namespace

// The compiler calls this for types whose address must be a multiple of `bytes`, as the device demands; of 16 bytes it
// says so of the halves alone.
inline void touch_aligned(const volatile void* address, size_t bytes, Access access, void* caller) {
  const size_t alignment = bytes < 8 ? bytes : 8;
  if (tercet::emu::current_thread != nullptr && reinterpret_cast<uintptr_t>(address) % alignment != 0)
    tercet::emu::fail_misaligned(alignment, caller);
  touch(address, bytes, access, caller);
}

#define CALLER __builtin_return_address(0)
#define ACCESS_HOOKS(bytes)                                                                           \
  void __tsan_read##bytes(void* address) { touch_aligned(address, bytes, Access::read, CALLER); }     \
  void __tsan_write##bytes(void* address) { touch_aligned(address, bytes, Access::write, CALLER); }   \
  void __tsan_unaligned_read##bytes(void* address) { touch(address, bytes, Access::read, CALLER); }   \
  void __tsan_unaligned_write##bytes(void* address) { touch(address, bytes, Access::write, CALLER); } \
  void __tsan_volatile_read##bytes(void* address) { touch(address, bytes, Access::read, CALLER); }    \
  void __tsan_volatile_write##bytes(void* address) { touch(address, bytes, Access::write, CALLER); }

// Atomic operations of instrumented host code (reference counts). Blocks run one at a time, but the host may have
// threads: they stay atomic.
#define ATOMIC_HOOKS(bits, type)                                                                                \
  type __tsan_atomic##bits##_load(const volatile type* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile type* a, type v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_exchange(volatile type* a, type v, int) {                                          \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_add(volatile type* a, type v, int) {                                         \
    return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_sub(volatile type* a, type v, int) {                                         \
    return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* a, type* expected, type v, int, int) {       \
    return __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* a, type* expected, type v, int, int) {         \
    return __atomic_compare_exchange_n(a, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }

extern "C" {
ACCESS_HOOKS(1)
ACCESS_HOOKS(2)
ACCESS_HOOKS(4)
ACCESS_HOOKS(8)
ACCESS_HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) { touch(address, bytes, Access::read, CALLER); }
void __tsan_write_range(void* address, size_t bytes) { touch(address, bytes, Access::write, CALLER); }
ATOMIC_HOOKS(8, uint8_t)
ATOMIC_HOOKS(16, uint16_t)
ATOMIC_HOOKS(32, uint32_t)
ATOMIC_HOOKS(64, uint64_t)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

#endif
