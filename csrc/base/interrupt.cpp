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

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(SIGINT, &action, &before_int) != 0 || ::sigaction(SIGTERM, &action, &before_term) != 0)
    fail_errno("cannot handle signals", "");
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
