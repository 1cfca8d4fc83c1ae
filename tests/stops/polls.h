// A stand-in for csrc/train/signals.cpp, linked in its place: a stop is asked for at a given poll.
#pragma once

#include <cstdint>

namespace tercet::testing {

struct Polls {
  int64_t count = 0;  // of calls of stop_signal()
  int64_t first = 0;  // the call from which on a stop is asked for; 0: never
};

Polls& polls();

}  // namespace tercet::testing
