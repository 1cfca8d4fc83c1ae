// How adversarial the emulator is.
#pragma once

#include <cstdint>
#include <string>

namespace tercet::emu {

// Which of the threads, blocks and streams that may run goes next.
enum class Order { fifo, lifo, random };
// When an asynchronous copy lands: as soon, or as late as the kernel's waits allow.
enum class CopyLanding { early, late };

struct Settings {
  Order order = Order::fifo;
  uint64_t seed = 1;  // of Order::random
  CopyLanding copy = CopyLanding::late;
};

// The settings of all launches from now on. Every opened device sets them from the environment.
Settings& settings();

// From TERCET_EMU_ORDER (fifo, lifo, random), TERCET_EMU_SEED and TERCET_EMU_COPY (late, early). Throws
// Error(Fault::input) that names a variable with another value.
Settings settings_from_environment();

// "order random (seed 7), copies late"
std::string describe(const Settings& settings);

// What kernels have done since the process started.
struct Statistics {
  uint64_t launches = 0;
  uint64_t threads = 0;
  uint64_t switches = 0;         // of fibers
  uint64_t barriers = 0;         // of blocks
  uint64_t collectives = 0;      // of warps
  uint64_t matrix_products = 0;  // mma
  uint64_t matrix_loads = 0;     // ldmatrix.x4
  uint64_t bank_conflicts = 0;   // cycles that matrix loads took beyond four each
  uint64_t asynchronous_copies = 0;
};
Statistics& statistics();

}  // namespace tercet::emu
