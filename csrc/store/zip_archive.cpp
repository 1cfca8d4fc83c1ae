#include "store/zip_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "store/tensor_file.h"

namespace tercet {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMaxCommentBytes = 0xFFFF;
constexpr uint64_t kMaxEntries = 200'000;
constexpr uint16_t kZip64ExtraId = 1;
constexpr uint16_t kEncryptedFlags = 0x2041;  // traditional, strong, masked headers
constexpr uint16_t kSizesFollowFlag = 0x0008;
constexpr uint16_t kMissing16 = 0xFFFF;
constexpr uint32_t kMissing32 = 0xFFFFFFFF;

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

struct CentralEntry {
  std::string name;
  uint64_t header = 0;
  uint64_t data = 0;
  uint64_t bytes = 0;
};

std::string quoted(std::string_view name) { return "\"" + printable(name) + "\""; }

class Parser {
 public:
  Parser(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  std::vector<CentralEntry> parse() {
    const Directory directory = find_directory();
    if (directory.entries > kMaxEntries)
      fail(fmt::format("the zip archive has {} entries, more than {}", directory.entries, kMaxEntries));
    std::vector<CentralEntry> entries;
    uint64_t position = directory.offset;
    const uint64_t end = directory.offset + directory.bytes;
    for (uint64_t i = 0; i < directory.entries; ++i) entries.push_back(read_central(position, end, directory.offset));
    if (position != end) fail("the zip directory has bytes after its last entry");
    check_overlaps(entries);
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_input(what, path_, "copy or download the file again"); }

  template <class T>
  T load(uint64_t offset) const {
    if (offset > file_.size() || sizeof(T) > file_.size() - offset) fail("the zip archive is truncated");
    T value{};
    std::memcpy(&value, file_.data() + offset, sizeof(T));
    return value;
  }

  uint64_t find_end() const {
    if (file_.size() < kEndBytes) fail("the zip archive is truncated");
    const uint64_t last = file_.size() - kEndBytes;
    const uint64_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
    for (uint64_t offset = last + 1; offset-- > first;)
      if (load<uint32_t>(offset) == kEndSignature && load<uint16_t>(offset + 20) == last - offset) return offset;
    fail("the zip archive is truncated: its directory at the end is missing");
  }

  Directory find_directory() const {
    const uint64_t end = find_end();
    if (load<uint16_t>(end + 4) != 0 || load<uint16_t>(end + 6) != 0) fail("the zip archive is one of several disks");
    Directory directory{load<uint32_t>(end + 16), load<uint32_t>(end + 12), load<uint16_t>(end + 10)};
    const uint64_t here = load<uint16_t>(end + 8);
    if (here != directory.entries) fail("the zip directory's end contradicts itself");
    uint64_t limit = end;
    if (end >= kLocator64Bytes && load<uint32_t>(end - kLocator64Bytes) == kLocator64Signature)
      limit = read_end64(end - kLocator64Bytes, directory);
    if (directory.offset > limit || directory.bytes != limit - directory.offset)
      fail("the zip directory is not where the archive's end says");
    return directory;
  }

  // Replaces the fields that the 32-bit record lacks; returns the offset of the 64-bit record.
  uint64_t read_end64(uint64_t locator, Directory& directory) const {
    const auto record = load<uint64_t>(locator + 8);
    if (load<uint32_t>(locator + 4) != 0 || load<uint32_t>(locator + 16) > 1)
      fail("the zip archive is one of several disks");
    if (record > locator || locator - record < kEnd64Bytes || load<uint32_t>(record) != kEnd64Signature ||
        load<uint64_t>(record + 4) != locator - record - 12)
      fail("the zip archive's 64-bit record is not where its locator says");
    if (load<uint32_t>(record + 16) != 0 || load<uint32_t>(record + 20) != 0)
      fail("the zip archive is one of several disks");
    const Directory wide{load<uint64_t>(record + 48), load<uint64_t>(record + 40), load<uint64_t>(record + 32)};
    const auto agree = [](uint64_t narrow, uint64_t full, uint64_t missing) {
      return narrow == missing || narrow == full;
    };
    if (load<uint64_t>(record + 24) != wide.entries || !agree(directory.offset, wide.offset, kMissing32) ||
        !agree(directory.bytes, wide.bytes, kMissing32) || !agree(directory.entries, wide.entries, kMissing16))
      fail("the zip archive's 64-bit record contradicts its 32-bit record");
    directory = wide;
    return record;
  }

  std::string name_at(uint64_t offset, uint64_t bytes) const {
    if (offset > file_.size() || bytes > file_.size() - offset) fail("the zip archive is truncated");
    return std::string(reinterpret_cast<const char*>(file_.data()) + offset, bytes);
  }

  CentralEntry read_central(uint64_t& position, uint64_t end, uint64_t data_end) const {
    if (end - position < kCentralBytes || load<uint32_t>(position) != kCentralSignature)
      fail("the zip directory is damaged");
    const uint64_t name_bytes = load<uint16_t>(position + 28);
    const uint64_t extra_bytes = load<uint16_t>(position + 30);
    const uint64_t comment_bytes = load<uint16_t>(position + 32);
    const uint64_t total = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (total > end - position) fail("the zip directory is damaged");
    CentralEntry entry;
    entry.name = name_at(position + kCentralBytes, name_bytes);
    const auto flags = load<uint16_t>(position + 8);
    check_method(entry.name, flags, load<uint16_t>(position + 10));
    uint64_t compressed = load<uint32_t>(position + 20);
    entry.bytes = load<uint32_t>(position + 24);
    entry.header = load<uint32_t>(position + 42);
    const uint64_t disk = load<uint16_t>(position + 34);
    if (disk != 0) fail("the zip archive is one of several disks");
    read_extra(position + kCentralBytes + name_bytes, extra_bytes, {&entry.bytes, &compressed, &entry.header});
    if (compressed != entry.bytes)
      fail(fmt::format("the zip entry {} is stored with two different sizes", quoted(entry.name)));
    locate_data(entry, data_end);
    position += total;
    return entry;
  }

  void check_method(const std::string& name, uint16_t flags, uint16_t method) const {
    if ((flags & kEncryptedFlags) != 0)
      fail_input(fmt::format("the zip entry {} is encrypted", quoted(name)), path_,
                 "save the model again with torch.save");
    if (method != 0)
      fail_input(fmt::format("the zip entry {} is compressed", quoted(name)), path_,
                 "save the model again with torch.save, which stores without compression");
  }

  // Reads the ZIP64 extra field, which holds, in order, those of `fields` that are at their 32-bit maximum.
  void read_extra(uint64_t offset, uint64_t bytes, std::vector<uint64_t*> fields) const {
    std::erase_if(fields, [](const uint64_t* field) { return *field != kMissing32; });
    const uint64_t end = offset + bytes;
    while (!fields.empty() && end - offset >= 4) {
      const auto id = load<uint16_t>(offset);
      const uint64_t size = load<uint16_t>(offset + 2);
      if (size > end - offset - 4) fail("the zip directory has a damaged extra field");
      if (id == kZip64ExtraId) {
        if (size < fields.size() * 8) fail("the zip directory has a ZIP64 field that is too short");
        for (size_t i = 0; i < fields.size(); ++i) *fields[i] = load<uint64_t>(offset + 4 + 8 * i);
        return;
      }
      offset += 4 + size;
    }
    if (!fields.empty()) fail("the zip directory lacks a ZIP64 field");
  }

  void locate_data(CentralEntry& entry, uint64_t data_end) const {
    const uint64_t header = entry.header;
    if (header > data_end || data_end - header < kLocalBytes || load<uint32_t>(header) != kLocalSignature)
      fail(fmt::format("the zip entry {} does not begin where the directory says", quoted(entry.name)));
    const auto flags = load<uint16_t>(header + 6);
    check_method(entry.name, flags, load<uint16_t>(header + 8));
    const uint64_t name_bytes = load<uint16_t>(header + 26);
    const uint64_t extra_bytes = load<uint16_t>(header + 28);
    if (name_at(header + kLocalBytes, name_bytes) != entry.name)
      fail(fmt::format("the zip entry {} has another name in its own header", quoted(entry.name)));
    const auto local_bytes = load<uint32_t>(header + 22);
    if ((flags & kSizesFollowFlag) == 0 && local_bytes != kMissing32 && local_bytes != entry.bytes)
      fail(fmt::format("the zip entry {} has another size in its own header", quoted(entry.name)));
    entry.data = header + kLocalBytes + name_bytes + extra_bytes;
    if (entry.data > data_end || entry.bytes > data_end - entry.data)
      fail(fmt::format("the zip entry {} reaches beyond the file's data", quoted(entry.name)));
  }

  void check_overlaps(std::vector<CentralEntry>& entries) const {
    std::sort(entries.begin(), entries.end(),
              [](const CentralEntry& a, const CentralEntry& b) { return a.header < b.header; });
    for (size_t i = 1; i < entries.size(); ++i)
      if (entries[i].header < entries[i - 1].data + entries[i - 1].bytes)
        fail(fmt::format("the zip entries {} and {} overlap", quoted(entries[i - 1].name), quoted(entries[i].name)));
  }

  std::span<const std::byte> file_;
  const std::string& path_;
};

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> file, const std::string& path) : file_(file) {
  for (CentralEntry& entry : Parser(file, path).parse())
    if (!entries_.emplace(entry.name, Entry{entry.data, entry.bytes}).second)
      fail_input(fmt::format("the zip entry {} appears twice", quoted(entry.name)), path,
                 "copy or download the file again");
}

const ZipArchive::Entry* ZipArchive::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::string_view ZipArchive::text(const Entry& entry) const {
  return {reinterpret_cast<const char*>(file_.data()) + entry.offset, entry.bytes};
}

}  // namespace tercet
