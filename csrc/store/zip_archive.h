// The directory of a zip archive whose entries are stored without compression, as PyTorch writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace tercet {

// A view of an archive's bytes, which must outlive it. Reads the central directory (ZIP64 too) and each entry's local
// header. Throws Error(Fault::input, where = `path`) unless the archive ends with the file, is whole and on one disk,
// every entry is stored and not encrypted, lies inside the file before the directory, agrees with its local header and
// overlaps no other entry, and names are distinct. Nothing is extracted and no name is used as a path.
class ZipArchive {
 public:
  ZipArchive(std::span<const std::byte> file, const std::string& path);

  struct Entry {
    uint64_t offset = 0;  // of the data, from the start of the file
    uint64_t bytes = 0;
  };

  const std::unordered_map<std::string, Entry>& entries() const { return entries_; }

  // The entry of that name, or nullptr.
  const Entry* find(const std::string& name) const;

  std::string_view text(const Entry& entry) const;

 private:
  std::span<const std::byte> file_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace tercet
