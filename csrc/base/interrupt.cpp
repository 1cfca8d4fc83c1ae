#include "base/interrupt.h"

#include <unistd.h>

#include <csignal>

#include "base/error.h"

namespace tercet {
namespace {

volatile std::sig_atomic_t received = 0;
struct sigaction before_int, before_term;

void on_signal(int signal) {
  if (received != 0) ::_exit(128 + signal);
  received = signal;
}

}  // namespace

void handle_signals(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals)
    if (::sigaction(signal, &action, nullptr) != 0) fail_errno("cannot handle signals", "");
}

InterruptGuard::InterruptGuard() {
  received = 0;
  ::sigaction(SIGINT, nullptr, &before_int);
  ::sigaction(SIGTERM, nullptr, &before_term);
  handle_signals({SIGINT, SIGTERM}, on_signal);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &before_int, nullptr);
  ::sigaction(SIGTERM, &before_term, nullptr);
  received = 0;
}

void throw_if_interrupted() {
  if (received != 0) throw Interrupted(received);
}

}  // namespace tercet
