// Finds accesses of shared and device memory that no barrier orders, without waiting for a wrong result. Only in builds
// with TERCET_EMU_RACE, whose kernels are compiled with -fsanitize=thread: the compiler then calls a function at each
// access (tsan_hooks.cpp), which ends here instead of in a thread sanitizer.
//
// __syncthreads orders all accesses of a block, __syncwarp those of its lanes (by vector clocks); shuffles, votes and
// matrix operations order nothing, and nothing orders the blocks of a launch. Launches are ordered. Memory is watched
// in units of 2 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tercet::emu::race {

#if defined(TERCET_EMU_RACE)
inline constexpr bool kChecked = true;
#else
inline constexpr bool kChecked = false;
#endif

enum class Memory { shared, device };
enum class Access { read, write, atomic };

// Watches memory from now on. Memory that is watched already is left as it is.
void watch(const void* begin, size_t bytes, Memory memory);

void begin_launch();
void begin_block(int threads);
// All threads of the block have met.
void order_block();
// These lanes of a warp have met.
void order_warp(int warp, uint32_t lanes);

// Thread `thread` of the running block touches memory, at the instruction `code`.
void touch(int thread, const void* address, size_t bytes, Access access, uintptr_t code);

// An asynchronous copy into shared memory is under way from one call to the other: whoever touches its target meanwhile
// races with it, whatever barriers there are.
void begin_copy(int thread, const void* target, size_t bytes, uintptr_t code);
void end_copy(const void* target, size_t bytes);

// One line for each pair of places that raced in the launch, or "".
std::string report();

}  // namespace tercet::emu::race
