// base: errors, logging, random numbers, threads, files and JSON; everything else in tercet stands on it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace tercet {

// Who has to act on an error, and with it the exit code of the process.
enum class Fault {
  run,    // the run failed: exit 1
  input,  // arguments or input files are wrong: exit 2
};

// The one exception type of tercet. A message has three parts: what is wrong, where, and what to do about it.
class Error : public std::runtime_error {
 public:
  // `where` is a file, a file:line, a flag or a tensor; `remedy` is an instruction. Both may be empty.
  Error(Fault fault, const std::string& what, const std::string& where, const std::string& remedy);

  Fault fault() const { return fault_; }
  int exit_code() const { return fault_ == Fault::input ? 2 : 1; }

 private:
  Fault fault_;
};

// Throws Error(Fault::input): the user's arguments or files are wrong.
[[noreturn]] void fail_input(const std::string& what, const std::string& where = "", const std::string& remedy = "");

// Throws Error(Fault::run): the run cannot go on.
[[noreturn]] void fail_run(const std::string& what, const std::string& where = "", const std::string& remedy = "");

// Throws Error(Fault::run) that names errno's text.
[[noreturn]] void fail_errno(const std::string& what, const std::string& where);

namespace detail {
[[noreturn]] void require_failed(const char* condition, const char* file, int line, const std::string& message);
}

// Checks an invariant or a caller's contract in every build; throws Error(Fault::run) with a fmt-formatted message.
#define TERCET_REQUIRE(condition, ...)                                                              \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::tercet::detail::require_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace tercet
