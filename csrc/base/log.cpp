#include "base/log.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/error.h"

namespace tercet::log {
namespace {

constexpr size_t kMaxEarlyBytes = size_t{64} << 10;

struct Sink {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::string early;  // messages while no file is open
  bool terminal = true;
};

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

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
  fmt::print(file, "{}", sink().early);
  sink().early.clear();
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

void write_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, is_control, '?');
  const std::lock_guard lock(sink().mutex);
  if (sink().terminal) fmt::print(stderr, "{}\n", line);
  if (sink().file != nullptr) {
    fmt::print(sink().file, "{}\n", line);
    std::fflush(sink().file);
  } else if (sink().early.size() + line.size() < kMaxEarlyBytes) {
    sink().early.append(line) += '\n';
  }
}

}  // namespace tercet::log
