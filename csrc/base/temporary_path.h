// Files and folders in the making: under another name beside their place until they are whole.
#pragma once

#include <string>
#include <string_view>

namespace tercet {

enum class PathKind { file, folder };

// Throws Error(Fault::input) when nothing can be written at `place`: its folder does not exist, or a folder is where a
// file should go.
void check_output_place(const std::string& place, PathKind kind);

// Whether a file of this name is one in the making, of any place.
bool is_temporary_name(std::string_view name);

// A new file or folder beside `place`, removed on destruction unless published. Its writer holds a lock on it, so that
// what a killed process left behind is known and removed by the next writer of the same place.
class TemporaryPath {
 public:
  // Throws what check_output_place throws, Error(Fault::input) where the folder of `place` is not writable, and
  // Error(Fault::run) when it cannot be created for another reason.
  TemporaryPath(const std::string& place, PathKind kind);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }  // of a file, for reading and writing

  // Flushes to disk, renames to the place and flushes its folder, so that a crash leaves the old file or the new one.
  // Throws Error(Fault::run).
  void publish();

 private:
  void create();

  std::string place_;
  std::string path_;
  PathKind kind_;
  int descriptor_ = -1;
};

}  // namespace tercet
