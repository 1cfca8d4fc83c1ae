#include "train/signals.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace tercet {
namespace {

volatile std::sig_atomic_t requested_stop = 0;

constexpr std::string_view kNotice =
    "\ntercet: stopping: the optimiser step is finished and saved; a second signal exits at once\n";

void on_signal(int signal) {
  const int earlier = requested_stop;
  if (signal == SIGUSR1) {
    if (earlier == 0) requested_stop = SIGUSR1;
    return;
  }
  if (earlier != 0 && earlier != SIGUSR1) ::_exit(128 + signal);
  requested_stop = signal;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kNotice.data(), kNotice.size());
}

}  // namespace

void install_signal_handlers() { handle_signals({SIGINT, SIGTERM, SIGUSR1}, on_signal); }

int stop_signal() { return requested_stop; }

int stop_exit_code(int signal) { return signal == 0 || signal == SIGUSR1 ? 0 : 128 + signal; }

}  // namespace tercet
