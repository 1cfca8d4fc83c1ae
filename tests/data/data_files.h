// Files of records for tests, and the errors that reading them must give.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"

namespace tercet::testing {

// A folder that is removed at the end of the test. Paths in messages appear as "D/<name>" after hide().
class DataFolder : TemporaryFolder {
 public:
  std::string path(const std::string& name) const { return *this / name; }

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    write_file_atomically(path(name), text);
    return path(name);
  }

  std::string hide(std::string message) const {
    const std::string& folder = TemporaryFolder::path;
    for (size_t at = message.find(folder); at != std::string::npos; at = message.find(folder))
      message.replace(at, folder.size(), "D");
    return message;
  }

  // Runs `action` and returns the message of the Error that it must throw, with exit code 2.
  std::string input_error(const std::function<void()>& action) const {
    try {
      action();
    } catch (const Error& error) {
      CHECK(error.exit_code() == 2);
      return hide(error.what());
    }
    return "no error";
  }
};

// The text as one gzip member.
inline std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace tercet::testing
