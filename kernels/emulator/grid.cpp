#include "kernels/emulator/grid.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/emulator/block_runner.h"
#include "kernels/emulator/race_checker.h"
#include "kernels/emulator/shared_memory.h"

namespace tercet::emu {
namespace {

size_t dynamic_shared_bytes = 0;  // of the running launch

[[noreturn]] void fail_kernel(const std::string& name, const Failure& failure) {
  const uint3 block = current_launch.block_index;
  std::string place = fmt::format("kernel {}, block ({}, {}, {})", name, block.x, block.y, block.z);
  if (failure.thread >= 0) place += fmt::format(", thread {}", failure.thread);
  if (!failure.where.empty()) place += ", at " + failure.where;
  fail_run(failure.message, place);
}

// Block numbers in the order in which they run.
class BlockOrder {
 public:
  BlockOrder(uint64_t blocks, uint64_t launch) : blocks_(blocks) {
    if (settings().order != Order::random) return;
    shuffled_.resize(blocks);
    std::iota(shuffled_.begin(), shuffled_.end(), uint64_t{0});
    const RandomStream random(settings().seed, RandomPurpose::shuffle, launch);
    for (uint64_t i = blocks; i > 1; --i) std::swap(shuffled_[i - 1], shuffled_[random.below(i, i)]);
  }

  uint64_t operator[](uint64_t i) const {
    if (settings().order == Order::fifo) return i;
    return settings().order == Order::lifo ? blocks_ - 1 - i : shuffled_[i];
  }

 private:
  uint64_t blocks_;
  std::vector<uint64_t> shuffled_;
};

void run_block(const std::string& name, const LaunchShape& shape, const std::function<void()>& body, uint64_t block,
               uint64_t launch) {
  const uint64_t row = block / shape.grid_x;
  current_launch.block_index = {static_cast<unsigned>(block % shape.grid_x), static_cast<unsigned>(row % shape.grid_y),
                                static_cast<unsigned>(row / shape.grid_y)};
  poison_shared(shape.shared_bytes);
  if constexpr (race::kChecked) race::begin_block(static_cast<int>(shape.threads));
  Failure failure;
  if (!block_runner().run(body, block + (launch << 32), failure)) fail_kernel(name, failure);
}

}  // namespace

std::recursive_mutex& execution_lock() {
  static std::recursive_mutex mutex;
  return mutex;
}

void require_launchable(const char* name, const LaunchShape& shape) {
  constexpr unsigned kMaxGridYz = 65535;
  const std::string where = fmt::format("kernel {}", name);
  if (shape.threads < 1 || shape.threads > kMaxThreads)
    fail_run(fmt::format("a block of {} threads; a GPU has 1 to {}", shape.threads, kMaxThreads), where);
  if (shape.grid_x > INT32_MAX || shape.grid_y > kMaxGridYz || shape.grid_z > kMaxGridYz)
    fail_run(fmt::format("a grid of {} x {} x {} blocks; a GPU has at most 2^31 - 1 x 65535 x 65535", shape.grid_x,
                         shape.grid_y, shape.grid_z),
             where);
  if (shape.shared_bytes > kMaxSharedBytes)
    fail_run(fmt::format("a block with {} bytes of dynamic shared memory; sm_90 has at most {}", shape.shared_bytes,
                         kMaxSharedBytes),
             where);
}

void run_grid(const std::string& name, const LaunchShape& shape, const std::function<void()>& body) {
  const std::lock_guard lock(execution_lock());
  const uint64_t launch = ++statistics().launches;
  const auto blocks = static_cast<uint64_t>(shape.blocks());
  current_launch = {{shape.grid_x, shape.grid_y, shape.grid_z}, {shape.threads, 1, 1}, {0, 0, 0}};
  dynamic_shared_bytes = shape.shared_bytes;
  open_dynamic_shared(shape.shared_bytes);
  watch_shared();
  if constexpr (race::kChecked) race::begin_launch();
  const BlockOrder order(blocks, launch);
  for (uint64_t i = 0; i < blocks; ++i) run_block(name, shape, body, order[i], launch);
  if constexpr (race::kChecked)
    if (const std::string races = race::report(); !races.empty())
      fail_run("accesses that no barrier orders: " + races, "kernel " + name);
}

bool in_shared_memory(const void* address, size_t bytes) { return is_shared(address, bytes, dynamic_shared_bytes); }

void* dynamic_shared_memory(Site site) {
  if (dynamic_shared_bytes == 0) fail_thread("the kernel was launched without dynamic shared memory", site);
  return dynamic_shared(dynamic_shared_bytes);
}

}  // namespace tercet::emu
