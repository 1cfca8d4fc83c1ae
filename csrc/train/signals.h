// Stops that a signal asks for: a run saves what it has done, says how to go on, and ends.
#pragma once

#include "base/interrupt.h"

namespace tercet {

// SIGINT and SIGTERM ask for a stop (a second one exits at once with 128 + its number), SIGUSR1 too. Installing again
// keeps what was asked.
void install_signal_handlers();
// 0, or the signal that asked for a stop; the latest one when SIGUSR1 was followed by another.
int stop_signal();
// Exit code after such a stop: 130, 143, or 0 for SIGUSR1 (and for 0, no stop).
int stop_exit_code(int signal);

// Throws Interrupted when a stop was asked for. For places between two optimiser steps, where all that is thrown away
// is what a resumed run computes again: drawing and scoring responses, evaluation, reading data.
inline void throw_if_stop_requested() {
  if (const int signal = stop_signal(); signal != 0) throw Interrupted(signal);
}

}  // namespace tercet
