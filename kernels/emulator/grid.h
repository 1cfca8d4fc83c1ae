// Runs the blocks of a kernel, one after the other, in the order of the settings.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

#include "device/gpu_stream.h"
#include "kernels/emulator/execution.h"

namespace tercet::emu {

// Throws Error(Fault::run) when no GPU of sm_80 or sm_90 could launch this shape.
void require_launchable(const char* name, const LaunchShape& shape);

// Runs a kernel whose threads all call `body`. Throws Error(Fault::run) that names kernel, block, thread and source
// line when a thread fails, the block hangs, or accesses race.
void run_grid(const std::string& name, const LaunchShape& shape, const std::function<void()>& body);

// Held while device work runs: kernels, and with them static shared memory, exist once per process.
std::recursive_mutex& execution_lock();

// Whether the bytes lie in shared memory of the running block.
bool in_shared_memory(const void* address, size_t bytes);

}  // namespace tercet::emu
