// Shared memory of the block that runs: __shared__ arrays and the dynamic part, one copy for all blocks.
#pragma once

#include <cstddef>

namespace tercet::emu {

// What a block can have on sm_90, the dynamic part by opting in; csrc/device does so when it launches.
inline constexpr size_t kMaxSharedBytes = 227 * 1024;

// Makes exactly `bytes` of dynamic shared memory accessible (ASan reports what lies beyond).
void open_dynamic_shared(size_t bytes);

// Fills all shared memory with 0xFF (NaNs), as a new block must expect.
void poison_shared(size_t dynamic_bytes);

// Aligned to 128 bytes. An inaccessible page follows at the next multiple of 128 after `bytes`.
void* dynamic_shared(size_t bytes);

bool is_shared(const void* address, size_t bytes, size_t dynamic_bytes);

// Tells the race checker where shared memory is.
void watch_shared();

}  // namespace tercet::emu
