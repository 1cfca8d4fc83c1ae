// What a dialogue with a person needs: lines, and Ctrl-C as an event.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace tercet {

// Lines that are typed or piped in.
class LineInput {
 public:
  virtual ~LineInput() = default;

  // The next line without its line feed; nothing at the end of the input and at a Ctrl-C while waiting for it.
  virtual std::optional<std::string> next(const std::string& prompt) = 0;
};

// Lines of stdin as they come; the prompt goes to stderr when stdin is a terminal.
std::unique_ptr<LineInput> plain_input();

// Lines of the terminal, edited and with a history of this process. Throws Error(Fault::run) when that cannot be had.
std::unique_ptr<LineInput> edited_input();

// From now on Ctrl-C (SIGINT) ends nothing by itself.
void catch_interrupts();
// Whether there was a Ctrl-C since catch_interrupts() or forget_interrupt().
bool interrupted();
void forget_interrupt();

// Waits until stdin has bytes or has ended; false when a signal came first.
bool wait_for_stdin();

}  // namespace tercet
