#include "store/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"

namespace tercet {
namespace {

constexpr int64_t kBufferElements = 1 << 22;

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path, PathKind::file) {}

void OutputFile::reserve(uint64_t bytes) {
  reserved_ = true;
  if (bytes == 0 || ::fallocate(temporary_.descriptor(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0)
    return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    fail_errno(fmt::format("cannot reserve {} bytes on the disk", bytes), path_);
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  throw_if_interrupted();
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(temporary_.descriptor(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("cannot write", path_);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::write_elements(uint64_t offset, DType source_dtype, const void* source, DType target_dtype,
                                int64_t count) {
  const auto* from = static_cast<const std::byte*>(source);
  if (source_dtype == target_dtype)
    return write_at(offset, {from, static_cast<size_t>(count) * dtype_size(target_dtype)});
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(count, kBufferElements)) * dtype_size(target_dtype));
  for (int64_t done = 0; done < count; done += kBufferElements) {
    const int64_t part = std::min(kBufferElements, count - done);
    convert_elements(source_dtype, from + static_cast<size_t>(done) * dtype_size(source_dtype), target_dtype,
                     buffer.data(), part);
    write_at(offset + static_cast<uint64_t>(done) * dtype_size(target_dtype),
             {buffer.data(), static_cast<size_t>(part) * dtype_size(target_dtype)});
  }
}

void OutputFile::publish() {
  // Gives back what was reserved beyond the end.
  const int fd = temporary_.descriptor();
  if (const off_t end = ::lseek(fd, 0, SEEK_END); reserved_ && (end < 0 || ::ftruncate(fd, end) != 0))
    fail_errno("cannot set the file's size", path_);
  temporary_.publish();
}

void Coverage::add(int64_t first, int64_t count, const std::string& name) {
  TERCET_REQUIRE(first >= 0 && count >= 0 && first <= elements_ - count,
                 "elements [{}, {} + {}) are outside the tensor {} of {} elements", first, first, count, name,
                 elements_);
  if (count == 0) return;
  int64_t begin = first;
  int64_t end = first + count;
  auto next = ranges_.lower_bound(begin);
  const auto previous = next == ranges_.begin() ? ranges_.end() : std::prev(next);
  const bool overlaps =
      (next != ranges_.end() && next->first < end) || (previous != ranges_.end() && previous->second > begin);
  TERCET_REQUIRE(!overlaps, "elements [{}, {}) of the tensor {} are written twice", begin, end, name);
  if (next != ranges_.end() && next->first == end) {
    end = next->second;
    ranges_.erase(next);
  }
  if (previous != ranges_.end() && previous->second == begin) {
    previous->second = end;
  } else {
    ranges_.emplace(begin, end);
  }
  covered_ += count;
}

}  // namespace tercet
