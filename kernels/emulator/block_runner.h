// Runs the threads of one block as fibers on the calling OS thread: a thread runs until it waits at a barrier or a warp
// operation, or ends; then the order of the settings chooses the next.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/emulator/execution.h"
#include "kernels/emulator/fiber.h"
#include "kernels/emulator/settings.h"

namespace tercet::emu {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kWarpLanes = 32;

// What ended a kernel early.
struct Failure {
  std::string message;
  std::string where;  // source line
  int thread = -1;    // -1: the block as a whole
};

// An asynchronous copy of 16 bytes under way.
struct AsyncCopy {
  void* shared;
  const void* global;
  bool valid;
  Site site;
  uintptr_t code;
};

struct Thread : ThreadPlace {
  void* stack_pointer = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  bool ended = false;
  const char* waits_for = nullptr;  // what it waits for, and where
  Site site;
  std::vector<AsyncCopy> copies;  // in flight; each committed group ends at groups[i]
  std::vector<size_t> groups;
};

class BlockRunner {
 public:
  // Runs a block whose threads all call `body`. Fills `failure` and returns false when it failed.
  bool run(const std::function<void()>& body, uint64_t block_number, Failure& failure);

  // --- Called by the running thread ---
  Thread& thread() { return threads_[static_cast<size_t>(running_)]; }
  [[noreturn]] void fail(std::string message, std::string where);
  void block_barrier(Site site);
  void collective(const char* operation, uint32_t mask, void* record, Compute compute, Site site);

  // --- Called by the fault handler ---
  // Whether `address` lies below the running thread's stack.
  bool overflows_stack(const void* address) const;
  // The stack pointer of run(): resumed, it reports `failure`.
  void* abandon(Failure failure);

 private:
  static constexpr int kNobody = -1;

  // A warp operation that some lanes have reached.
  struct Meeting {
    const char* operation = nullptr;
    uint32_t mask = 0;  // as the lanes gave it
    uint32_t arrived = 0;
    std::array<void*, kWarpLanes> records;  // of the lanes in `arrived`
    Compute compute = nullptr;
    Site site;
  };
  struct Warp {
    uint32_t alive = 0;
    std::vector<Meeting> meetings;
  };

  static void enter();
  void prepare(size_t threads);
  void make_ready(int thread) { ready_.push_back(thread); }
  int next_ready();
  void switch_to(int next, bool ending);
  // Lets another thread run; returns when this one is made ready and chosen.
  void yield(bool ending = false);
  void wait(const char* what, Site site);
  void end_thread();
  void release_barrier();
  static std::string describe_other_meeting(const Meeting& other, const char* operation, uint32_t mask);
  Meeting& meet(Warp& warp, const char* operation, uint32_t mask, Site site);
  void complete(Warp& warp, size_t meeting, int by_lane);
  void complete_without_ended(int warp);
  std::string describe_deadlock() const;

  const std::function<void()>* body_ = nullptr;
  std::vector<FiberStack> stacks_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<int> ready_;
  size_t ready_head_ = 0;
  std::vector<int> at_barrier_;
  int alive_ = 0;
  int running_ = kNobody;  // kNobody: run() itself
  void* main_stack_pointer_ = nullptr;
  const void* main_stack_bottom_ = nullptr;  // for AddressSanitizer
  size_t main_stack_bytes_ = 0;
  void* main_fake_stack_ = nullptr;
  Failure failure_;
  RandomStream random_{0, RandomPurpose::test};
  uint64_t drawn_ = 0;
};

// The one runner: kernels run one at a time, under the lock of grid.cpp.
BlockRunner& block_runner();

}  // namespace tercet::emu
