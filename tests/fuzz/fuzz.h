// What the fuzzers of the readers share. A reader may refuse a file by Error(Fault::input) and by nothing else: another
// exception, a report of a sanitizer, too much memory or time ends the process, and libFuzzer keeps the file.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

// Mutates data[0, size) in place, up to max_size bytes; returns the new size. Part of libFuzzer.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tercet::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// True when the file was read, false when it was refused.
inline bool reads(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    if (error.fault() == Fault::input) return false;
    std::fprintf(stderr, "not an error of the input: %s\n", error.what());
    std::abort();
  }
}

// A folder of this process, in memory where the machine has such a file system, for readers that take paths.
class Folder {
 public:
  Folder() {
    log::set_terminal(false);
    std::string name =
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm/tercet-fuzz-XXXXXX" : "/tmp/tercet-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline const Folder& folder() {
  static const Folder instance;
  return instance;
}

// libFuzzer's own mutations of a part of the input.
inline std::string mutated(std::string text, size_t max_size) {
  const size_t size = text.size();
  text.resize(std::max(size, max_size));
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
  return text;
}

// What a custom mutator returns: `text` in the fuzzer's buffer, or plain mutations when it does not fit.
inline size_t give(const std::string& text, uint8_t* data, size_t size, size_t max_size) {
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(data));
  return text.size();
}

}  // namespace tercet::fuzz
