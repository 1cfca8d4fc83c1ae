// Fibers: stacks that one OS thread switches between.
#pragma once

#include <cstddef>

namespace tercet::emu {

// A stack with an inaccessible page below it.
class FiberStack {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kBytes = 256 * 1024;  // sanitizers make frames larger
#else
  static constexpr size_t kBytes = 64 * 1024;
#endif

  // Throws Error(Fault::run) when there is no memory.
  FiberStack();
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept;
  FiberStack& operator=(FiberStack&&) = delete;

  // The stack pointer from which switch_stack starts `entry`, which must not return.
  void* start(void (*entry)()) const;
  std::byte* bottom() const { return bottom_; }
  bool guards(const void* address) const;

 private:
  std::byte* bottom_ = nullptr;
};

extern "C" {
// Saves the registers and the stack pointer of the running fiber at *save and goes on at `resume`. Callee-saved
// registers are all that the System V calling convention asks for.
void tercet_emu_switch(void** save, void* resume);
// Where a stack pointer that tercet_emu_switch saved is resumed: jumped to from a signal handler.
void tercet_emu_resume();
}

}  // namespace tercet::emu
