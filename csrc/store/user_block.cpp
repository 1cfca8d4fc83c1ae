#include "store/user_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mapped_pages.h"
#include "base/thread_pool.h"

namespace tercet {
namespace {

static_assert(std::endian::native == std::endian::little, "tercet's files are little-endian, and so is its code");

constexpr std::string_view kMagic = "TERCETH5";
constexpr std::string_view kHdf5Signature = "\x89HDF\r\n\x1a\n";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kVersionOffset = 8;
constexpr size_t kChunkSizeOffset = 12;
constexpr size_t kBlockBytesOffset = 16;
constexpr size_t kFileBytesOffset = 24;
constexpr size_t kChunksOffset = 32;
constexpr size_t kChecksumOffset = 40;
constexpr size_t kHeaderBytes = 64;
constexpr size_t kBytesPerChunkEntry = sizeof(uint64_t) + 1;
constexpr int64_t kChunksPerTask = 8;

template <class T>
void store(std::vector<std::byte>& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

uint64_t hash_without_checksum(std::span<const std::byte> block) {
  std::vector<std::byte> copy(block.begin(), block.end());
  store<uint64_t>(copy, kChecksumOffset, 0);
  return hash64(copy);
}

bool has_text_at(std::span<const std::byte> file, size_t offset, std::string_view text) {
  return file.size() >= offset + text.size() && std::memcmp(file.data() + offset, text.data(), text.size()) == 0;
}

// HDF5 looks for its signature at 0, 512, 1024, 2048, ...
bool is_hdf5(std::span<const std::byte> file) {
  if (has_text_at(file, 0, kHdf5Signature)) return true;
  for (size_t offset = 512; offset < file.size(); offset *= 2)
    if (has_text_at(file, offset, kHdf5Signature)) return true;
  return false;
}

[[noreturn]] void fail_no_block(std::span<const std::byte> file, const std::string& path) {
  const std::string remedy = "give a file that tercet wrote; `tercet import` makes one from a Hugging Face folder";
  if (file.empty()) fail_input("the file is empty", path, remedy);
  const size_t probe = std::min(file.size(), kHeaderBytes);
  const bool blank = std::all_of(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(probe),
                                 [](std::byte b) { return b == std::byte{0}; });
  if (!is_hdf5(file)) fail_input("not an HDF5 file", path, remedy);
  if (blank) fail_input("the file was never finished: its writer was stopped", path, "use the last complete file");
  fail_input("an HDF5 file, but not one that tercet wrote (it has no tercet block in front)", path, remedy);
}

void check_size(uint64_t recorded, uint64_t present, const std::string& path) {
  const std::string remedy = "copy the file again from where it is whole";
  if (present < recorded)
    fail_input(fmt::format("the file is truncated: {} of {} bytes are there", present, recorded), path, remedy);
  if (present > recorded)
    fail_input(fmt::format("the file has {} bytes after its end of {} bytes", present - recorded, recorded), path,
               remedy);
}

[[noreturn]] void fail_altered_block(const std::string& path) {
  fail_input("the file is altered: its first block does not match its checksum", path,
             "copy the file again from where it is whole");
}

// True when (offset, bytes) ranges, sorted and merged, contain [begin, end).
bool inside(const std::vector<std::pair<uint64_t, uint64_t>>& ranges, uint64_t begin, uint64_t end) {
  auto after = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                [](uint64_t value, const auto& range) { return value < range.first; });
  if (after == ranges.begin()) return false;
  const auto& range = *std::prev(after);
  return range.first + range.second >= end;
}

std::vector<std::pair<uint64_t, uint64_t>> merged(std::vector<std::pair<uint64_t, uint64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<uint64_t, uint64_t>> result;
  for (const auto& range : ranges) {
    if (range.second == 0) continue;
    if (!result.empty() && result.back().first + result.back().second == range.first) {
      result.back().second += range.second;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

}  // namespace

std::span<const std::byte> UserBlock::chunk(std::span<const std::byte> file, size_t index) const {
  const uint64_t begin = block_bytes + index * kChunkBytes;
  return file.subspan(begin, std::min(kChunkBytes, file_bytes - begin));
}

std::vector<std::byte> UserBlock::encode() const {
  TERCET_REQUIRE(kHeaderBytes + chunks() * kBytesPerChunkEntry <= block_bytes,
                 "{} checksums do not fit a block of {} bytes", chunks(), block_bytes);
  std::vector<std::byte> bytes(block_bytes);
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, kVersionOffset, kFormatVersion);
  store(bytes, kChunkSizeOffset, static_cast<uint32_t>(kChunkBytes));
  store(bytes, kBlockBytesOffset, block_bytes);
  store(bytes, kFileBytesOffset, file_bytes);
  store(bytes, kChunksOffset, uint64_t{chunks()});
  std::byte* entries = bytes.data() + kHeaderBytes;
  std::memcpy(entries, checksums.data(), chunks() * sizeof(uint64_t));
  std::memcpy(entries + chunks() * sizeof(uint64_t), structure.data(), chunks());
  store(bytes, kChecksumOffset, hash64(bytes));
  return bytes;
}

uint64_t user_block_bytes(uint64_t hdf5_bytes) {
  const uint64_t needed = kHeaderBytes + ceil_div(hdf5_bytes, kChunkBytes) * kBytesPerChunkEntry;
  return std::bit_ceil(std::max<uint64_t>(needed, 512));
}

uint64_t user_block_capacity(uint64_t block_bytes) {
  return (block_bytes - kHeaderBytes) / kBytesPerChunkEntry * kChunkBytes;
}

UserBlock make_user_block(const MappedFile& mapped, uint64_t block_bytes,
                          std::vector<std::pair<uint64_t, uint64_t>> elements) {
  const std::span<const std::byte> file = mapped.bytes();
  UserBlock block;
  block.block_bytes = block_bytes;
  block.file_bytes = file.size();
  const size_t chunks = ceil_div(file.size() - block_bytes, kChunkBytes);
  block.checksums.resize(chunks);
  block.structure.resize(chunks);
  const auto ranges = merged(std::move(elements));
  thread_pool().for_ranges(static_cast<int64_t>(chunks), kChunksPerTask, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto bytes = block.chunk(file, i);
      const uint64_t offset = block_bytes + i * kChunkBytes;
      block.checksums[i] = hash64(bytes);
      release_pages(mapped, bytes);
      block.structure[i] = inside(ranges, offset, offset + bytes.size()) ? 0 : 1;
    }
  });
  return block;
}

UserBlock parse_user_block(std::span<const std::byte> file, const std::string& path) {
  if (!has_text_at(file, 0, kMagic)) fail_no_block(file, path);
  const std::string remedy = "copy the file again from where it is whole";
  if (file.size() < 512)
    fail_input(fmt::format("the file is truncated: only {} bytes are there", file.size()), path, remedy);
  const auto version = load<uint32_t>(file, kVersionOffset);
  if (version > kFormatVersion)
    fail_input(fmt::format("format version {}, but this tercet reads up to version {}", version, kFormatVersion), path,
               "use a newer tercet");
  UserBlock block;
  block.block_bytes = load<uint64_t>(file, kBlockBytesOffset);
  block.file_bytes = load<uint64_t>(file, kFileBytesOffset);
  if (version == 0 || load<uint32_t>(file, kChunkSizeOffset) != kChunkBytes || block.block_bytes < 512 ||
      !std::has_single_bit(block.block_bytes) || block.file_bytes <= block.block_bytes)
    fail_altered_block(path);
  if (file.size() < block.block_bytes) check_size(block.file_bytes, file.size(), path);
  const uint64_t chunks = ceil_div(block.file_bytes - block.block_bytes, kChunkBytes);
  if (load<uint64_t>(file, kChunksOffset) != chunks || chunks > user_block_capacity(block.block_bytes) / kChunkBytes ||
      user_block_checksum(file) != hash_without_checksum(file.first(block.block_bytes)))
    fail_altered_block(path);
  check_size(block.file_bytes, file.size(), path);
  block.checksums.resize(chunks);
  block.structure.resize(chunks);
  std::memcpy(block.checksums.data(), file.data() + kHeaderBytes, chunks * sizeof(uint64_t));
  std::memcpy(block.structure.data(), file.data() + kHeaderBytes + chunks * sizeof(uint64_t), chunks);
  return block;
}

uint64_t user_block_checksum(std::span<const std::byte> file) { return load<uint64_t>(file, kChecksumOffset); }

}  // namespace tercet
