// Messages to the person at the terminal. Results go to stdout by the commands themselves; all of this goes to stderr
// and, when a run folder is open, to its log file.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace tercet::log {

// Also appends every message to `path`, which is created when absent: those since the last file was closed, up to 64
// KiB, and all to come. Throws Error when it cannot be opened.
void open_file(const std::string& path);
void close_file();

// Turns messages to the terminal off or on (tests, --quiet); the file still receives them.
void set_terminal(bool enabled);

// Control characters, which a damaged file may have put into a message, are written as '?'.
void write_line(std::string_view text);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write_line(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write_line("warning: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tercet::log
