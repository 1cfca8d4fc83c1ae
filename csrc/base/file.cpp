#include "base/file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/temporary_path.h"

namespace tercet {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written = ::write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("cannot write", path);
    contents.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail_input(fmt::format("cannot open the file: {}", std::strerror(errno)), path, "check the path");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot read the file's size", path);
  if (!S_ISREG(status.st_mode)) fail_input("not a regular file", path, "give the path of a file");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) fail_errno("cannot map the file", path);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
  other.size_ = 0;
}

std::string read_file(const std::string& path) { return std::string(MappedFile(path).text()); }

void write_file_atomically(const std::string& path, std::string_view contents) {
  TemporaryPath temporary(path, PathKind::file);
  write_all(temporary.descriptor(), contents, path);
  temporary.publish();
}

uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hash_file(const std::string& path) {
  constexpr size_t kPartBytes = size_t{16} << 20;
  const MappedFile file(path);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (size_t begin = 0; begin < file.size(); begin += kPartBytes) {
    const auto part = file.bytes().subspan(begin, std::min(kPartBytes, file.size() - begin));
    XXH3_128bits_update(&state, part.data(), part.size());
    release_pages(file, part);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace tercet
