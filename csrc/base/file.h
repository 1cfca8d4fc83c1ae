// Files: mapped reading, atomic writing, hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tercet {

// A file mapped read-only. The size is that of the open descriptor; throws Error(Fault::input) when the file cannot be
// opened or is not a regular file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file; throws Error(Fault::input) when it cannot be read.
std::string read_file(const std::string& path);

// Writes `path` so that a crash or a full disk leaves the old file or the new one (base/temporary_path.h, whose errors
// it throws; Error(Fault::run) when writing fails).
void write_file_atomically(const std::string& path, std::string_view contents);

// XXH3, 64 bits.
uint64_t hash64(std::span<const std::byte> bytes);
uint64_t hash64(std::string_view text);

// 32 hexadecimal digits of XXH3-128 of a file's bytes. Throws Error(Fault::input) when it cannot be read.
std::string hash_file(const std::string& path);

}  // namespace tercet
