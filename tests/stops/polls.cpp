#include "stops/polls.h"

#include <csignal>

#include "train/signals.h"

namespace tercet {

testing::Polls& testing::polls() {
  static Polls instance;
  return instance;
}

void install_signal_handlers() {}

int stop_signal() {
  testing::Polls& polls = testing::polls();
  ++polls.count;
  return polls.first > 0 && polls.count >= polls.first ? SIGINT : 0;
}

int stop_exit_code(int signal) { return signal == 0 ? 0 : 128 + signal; }

}  // namespace tercet
