#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace tercet {
namespace {

std::string join_parts(const std::string& what, const std::string& where, const std::string& remedy) {
  std::string message = where.empty() ? what : where + ": " + what;
  if (!remedy.empty()) message += "; " + remedy;
  return message;
}

}  // namespace

Error::Error(Fault fault, const std::string& what, const std::string& where, const std::string& remedy)
    : std::runtime_error(join_parts(what, where, remedy)), fault_(fault) {}

void fail_input(const std::string& what, const std::string& where, const std::string& remedy) {
  throw Error(Fault::input, what, where, remedy);
}

void fail_run(const std::string& what, const std::string& where, const std::string& remedy) {
  throw Error(Fault::run, what, where, remedy);
}

void fail_errno(const std::string& what, const std::string& where) {
  const std::string reason = std::strerror(errno);
  throw Error(Fault::run, what + ": " + reason, where, "");
}

void detail::require_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(Fault::run, fmt::format("{} (internal check `{}` failed)", message, condition),
              fmt::format("{}:{}", file, line), "this is a defect of tercet; please report it with this message");
}

}  // namespace tercet
