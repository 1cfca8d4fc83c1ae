#include "base/temporary_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

constexpr const char* kMark = ".partial-";

std::string folder_of(const std::string& place) {
  const std::string folder = fs::path(place).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string new_name(const std::string& place) {
  static std::atomic<int> number = 0;
  return fmt::format("{}{}{}-{}", place, kMark, ::getpid(), number++);
}

bool is_temporary_of(const std::string& name, const std::string& place) {
  const std::string beginning = fs::path(place).filename().string() + kMark;
  return name.size() > beginning.size() && name.starts_with(beginning) &&
         name.find_first_not_of("0123456789-", beginning.size()) == std::string::npos;
}

// Removes what writers of `place` that are no more have left: nobody holds the lock.
void remove_left_overs(const std::string& place) {
  std::error_code error;
  for (fs::directory_iterator entry(folder_of(place), error), end; !error && entry != end; entry.increment(error)) {
    if (!is_temporary_of(entry->path().filename().string(), place)) continue;
    const int descriptor = ::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    std::error_code ignored;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry->path(), ignored);
    ::close(descriptor);
  }
}

bool is_file_at(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

int open_new(const std::string& path, PathKind kind) {
  if (kind == PathKind::file) return ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (::mkdir(path.c_str(), 0777) != 0) return -1;
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

[[noreturn]] void fail_to_create(const std::string& place, PathKind kind) {
  const char* what = kind == PathKind::file ? "cannot create the file" : "cannot create the folder";
  constexpr std::array wrong_place = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, ENAMETOOLONG};
  if (std::ranges::find(wrong_place, errno) == wrong_place.end()) fail_errno(what, place);
  fail_input(fmt::format("{}: {}", what, std::strerror(errno)), place, "choose another place");
}

void sync_to_disk(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
  const bool done = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  errno = error;
  if (!done) fail_errno("cannot flush to disk", path);
}

}  // namespace

bool is_temporary_name(std::string_view name) { return name.find(kMark) != std::string_view::npos; }

void check_output_place(const std::string& place, PathKind kind) {
  std::error_code ignored;  // creating it says what is wrong with a name
  if (!fs::is_directory(folder_of(place), ignored))
    fail_input(fmt::format("there is no folder {}", folder_of(place)), place, "create it first");
  if (kind == PathKind::file && (fs::is_directory(place, ignored) || place.ends_with('/')))
    fail_input("this is a folder", place, "give the name of a file");
}

TemporaryPath::TemporaryPath(const std::string& place, PathKind kind)
    : place_(place), path_(new_name(place)), kind_(kind) {
  check_output_place(place, kind);
  remove_left_overs(place);
  create();
}

// A process that takes the new path for a left-over may remove it before it is locked.
void TemporaryPath::create() {
  while (true) {
    descriptor_ = open_new(path_, kind_);
    if (descriptor_ < 0) fail_to_create(place_, kind_);
    ::flock(descriptor_, LOCK_EX);
    if (is_file_at(descriptor_, path_)) return;
    ::close(descriptor_);
  }
}

TemporaryPath::~TemporaryPath() {
  if (descriptor_ < 0) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(descriptor_);
}

void TemporaryPath::publish() {
  sync_to_disk(path_, 0);
  if (std::rename(path_.c_str(), place_.c_str()) != 0)
    fail_errno(fmt::format("cannot rename the finished {}", kind_ == PathKind::file ? "file" : "folder"), place_);
  ::close(descriptor_);
  descriptor_ = -1;
  sync_to_disk(folder_of(place_), O_DIRECTORY);
}

}  // namespace tercet
