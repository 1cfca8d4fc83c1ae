#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"

namespace tercet {
namespace {

std::string format_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole % 3600 / 60);
}

}  // namespace

Progress::Progress(int64_t total_steps)
    : total_steps_(total_steps), terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

std::string Progress::rate_and_time_left(int64_t step) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double per_step = seconds / static_cast<double>(std::max<int64_t>(step - first_step_, 1));
  return fmt::format("{:.3g} s/step  {} left", per_step,
                     format_seconds(per_step * static_cast<double>(total_steps_ - step)));
}

void Progress::step(int64_t step, const std::string& summary, int64_t log_every) {
  if (first_step_ == 0) first_step_ = step - 1;
  const bool due = step == total_steps_ || (log_every > 0 && step % log_every == 0);
  const std::string text = fmt::format("step {}/{}  {}  {}", step, total_steps_, summary, rate_and_time_left(step));
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", text);
    std::fflush(stderr);
    open_line_ = true;
  } else if (due) {
    log::write_line(text);
  }
}

void Progress::line(const std::string& text) {
  clear();
  log::write_line(text);
}

void Progress::finish() {
  if (open_line_) fmt::print(stderr, "\n");
  open_line_ = false;
}

void Progress::clear() {
  if (open_line_) fmt::print(stderr, "\r\033[K");
  open_line_ = false;
}

}  // namespace tercet
