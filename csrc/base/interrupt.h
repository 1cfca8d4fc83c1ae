// Signals: handlers, and stops for commands that write one result and nothing else: what is in the making is removed.
#pragma once

#include <exception>
#include <initializer_list>

namespace tercet {

// From now on `handler` gets these signals; system calls that they meet go on. Throws Error(Fault::run).
void handle_signals(std::initializer_list<int> signals, void (*handler)(int));

// SIGINT or SIGTERM came while an InterruptGuard lived. The process ends with exit code 128 + signal().
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return "stopped by a signal"; }

 private:
  int signal_;
};

// While it lives, SIGINT and SIGTERM make throw_if_interrupted() throw; a second one ends the process at once. One at a
// time; training, which saves before it stops, has handlers of its own (train/signals.h).
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

// Throws Interrupted once a guarded signal has come. Every write to a file in the making calls it.
void throw_if_interrupted();

}  // namespace tercet
