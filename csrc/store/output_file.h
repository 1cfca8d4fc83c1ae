// What the writers of tensor files share: a file in the making, and a record of which elements have been written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/temporary_path.h"
#include "store/tensor_file.h"

namespace tercet {

// A file under a temporary name beside `path`, removed on destruction unless published.
class OutputFile {
 public:
  // Creates the temporary file; throws the errors of TemporaryPath.
  explicit OutputFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_.path(); }

  // Reserves disk space for the first `bytes` bytes without changing the file's size, where the file system can. Throws
  // Error(Fault::run) when the disk has no room.
  void reserve(uint64_t bytes);

  // Writes all bytes at `offset`; throws Error(Fault::run), and Interrupted after a signal (base/interrupt.h).
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  // Writes `count` elements at `offset`, converted by blocks.
  void write_elements(uint64_t offset, DType source_dtype, const void* source, DType target_dtype, int64_t count);

  // Flushes to disk and renames to path().
  void publish();

 private:
  std::string path_;
  TemporaryPath temporary_;
  bool reserved_ = false;
};

// The elements of a tensor that have been written, as disjoint ranges.
class Coverage {
 public:
  explicit Coverage(int64_t elements) : elements_(elements) {}

  // Adds [first, first + count); throws Error(Fault::run) when outside the tensor or already written. `name` is for the
  // message.
  void add(int64_t first, int64_t count, const std::string& name);

  int64_t missing() const { return elements_ - covered_; }

 private:
  int64_t elements_;
  int64_t covered_ = 0;
  std::map<int64_t, int64_t> ranges_;  // end by begin; neighbours are merged
};

}  // namespace tercet
