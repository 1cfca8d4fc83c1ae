#include "app/line_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"

namespace tercet {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;
// Wakes wait_for_stdin(), whichever thread the signal comes to.
int wake_pipe[2] = {-1, -1};

void on_interrupt(int) {
  const int error = errno;
  interrupt_flag = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_pipe[1], "", 1);
  errno = error;
}

void empty_wake_pipe() {
  char bytes[64];
  while (::read(wake_pipe[0], bytes, sizeof bytes) > 0) {
  }
}

class PlainInput final : public LineInput {
 public:
  std::optional<std::string> next(const std::string& prompt) override {
    if (::isatty(STDIN_FILENO) == 1) fmt::print(stderr, "{}", prompt);
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (!fill()) break;
    }
    if (buffer_.empty() || interrupted()) return std::nullopt;
    return std::exchange(buffer_, {});
  }

 private:
  // False at the end of the input and at a Ctrl-C.
  bool fill() {
    while (!interrupted()) {
      if (!wait_for_stdin()) continue;
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_errno("cannot read", "stdin");
      buffer_.append(bytes, static_cast<size_t>(count));
      return count > 0;
    }
    return false;
  }

  std::string buffer_;
};

}  // namespace

std::unique_ptr<LineInput> plain_input() { return std::make_unique<PlainInput>(); }

void catch_interrupts() {
  if (wake_pipe[0] < 0 && ::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) fail_errno("cannot handle signals", "");
  handle_signals({SIGINT}, on_interrupt);
}

bool interrupted() { return interrupt_flag != 0; }

void forget_interrupt() {
  empty_wake_pipe();
  interrupt_flag = 0;
}

bool wait_for_stdin() {
  pollfd descriptors[] = {{STDIN_FILENO, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}};
  return ::poll(descriptors, 2, -1) > 0 && descriptors[1].revents == 0;
}

}  // namespace tercet
