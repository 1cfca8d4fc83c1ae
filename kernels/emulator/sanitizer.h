// AddressSanitizer's manual annotations; nothing in builds without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tercet::emu {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
inline void poison_region(const void* begin, size_t bytes) { __asan_poison_memory_region(begin, bytes); }
inline void unpoison_region(const void* begin, size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
#else
inline constexpr bool kAddressSanitizer = false;
inline void poison_region(const void*, size_t) {}
inline void unpoison_region(const void*, size_t) {}
#endif

}  // namespace tercet::emu
