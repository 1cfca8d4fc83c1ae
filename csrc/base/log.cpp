#include "base/log.h"

#include <cstdio>
#include <mutex>

#include "base/error.h"

namespace tercet::log {
namespace {

struct Sink {
  std::mutex mutex;
  std::FILE* file = nullptr;
  bool terminal = true;
};

Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

void open_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) fail_errno("cannot open the log file", path);
  close_file();
  const std::lock_guard lock(sink().mutex);
  sink().file = file;
}

void close_file() {
  const std::lock_guard lock(sink().mutex);
  if (sink().file != nullptr) std::fclose(sink().file);
  sink().file = nullptr;
}

void set_terminal(bool enabled) {
  const std::lock_guard lock(sink().mutex);
  sink().terminal = enabled;
}

void write_line(std::string_view line) {
  const std::lock_guard lock(sink().mutex);
  if (sink().terminal) fmt::print(stderr, "{}\n", line);
  if (sink().file != nullptr) {
    fmt::print(sink().file, "{}\n", line);
    std::fflush(sink().file);
  }
}

}  // namespace tercet::log
