// The progress of a run on the terminal: one line that is written over on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tercet {

class Progress {
 public:
  explicit Progress(int64_t total_steps);

  // After each step. On a terminal the line is replaced: step, summary, steps per second, time left. Elsewhere a line
  // is written every `log_every` steps and for the last one.
  void step(int64_t step, const std::string& summary, int64_t log_every);

  // A line that stays (an evaluation).
  void line(const std::string& text);

  // Ends the line that is being replaced.
  void finish();

 private:
  std::string rate_and_time_left(int64_t step) const;
  void clear();

  int64_t total_steps_;
  bool terminal_;
  bool open_line_ = false;
  int64_t first_step_ = 0;  // the step before the first one seen
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tercet
