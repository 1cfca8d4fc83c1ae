// What code inside a kernel asks of the engine. All of it is called by an emulated thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "kernels/emulator/cuda_types.h"

namespace tercet::emu {

using Site = std::source_location;

// The running thread's place in its block. `number` counts along x, then y, then z.
struct ThreadPlace {
  uint3 index;
  int number, warp, lane;
};

// The launch and the block that is running.
struct LaunchPlace {
  dim3 grid, block;
  uint3 block_index;
};

extern const ThreadPlace* current_thread;  // nullptr outside of kernels
extern LaunchPlace current_launch;

// Ends the kernel: Stream::synchronize throws an Error that names kernel, block, thread, site and this message.
[[noreturn]] void fail_thread(std::string message, Site site);

// The caller, or the caller of `code`, accesses an address that is not a multiple of `bytes`.
[[noreturn]] void fail_misaligned(size_t bytes);
[[noreturn]] void fail_misaligned(size_t bytes, const void* code);

// __syncthreads: threads that have ended count as arrived.
void block_barrier(Site site);

// One operation of the lanes named in `mask`, of which those that have ended are left out. Each lane passes a record;
// the last lane to arrive calls compute(records by lane, the lanes that take part).
using Compute = void (*)(void* const* records, uint32_t lanes);
void collective(const char* operation, uint32_t mask, void* record, Compute compute, Site site);
// __syncwarp: orders memory among the lanes.
void warp_barrier(uint32_t mask, Site site);

// The block's dynamic shared memory.
void* dynamic_shared_memory(Site site);

void copy_async16(void* shared, const void* global, bool valid, Site site);
void copy_async_commit();
void copy_async_wait(int pending);

enum class MatrixElement { bf16, f16 };
void load_matrices(uint32_t* registers, const void* row, bool transposed, Site site);
void multiply_accumulate(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, MatrixElement element, Site site);

// Tells the race checker of an atomic operation at the instruction before `code`; nothing in other builds.
void note_atomic(const void* address, size_t bytes, const void* code);

}  // namespace tercet::emu
