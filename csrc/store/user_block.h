// The user block in front of the HDF5 part of a file (layout in hdf5_file.h): sizes and checksums, no HDF5 here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace tercet {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

struct UserBlock {
  uint64_t block_bytes = 0;
  uint64_t file_bytes = 0;
  std::vector<uint64_t> checksums;  // XXH3-64 of each chunk of the HDF5 part
  std::vector<uint8_t> structure;   // 0: elements of tensors only

  size_t chunks() const { return checksums.size(); }
  // The bytes of a chunk; `file` is the whole file.
  std::span<const std::byte> chunk(std::span<const std::byte> file, size_t index) const;
  // The whole block, its own checksum included.
  std::vector<std::byte> encode() const;
};

// Bytes of a block for an HDF5 part of at most `hdf5_bytes`: a power of two, at least 512.
uint64_t user_block_bytes(uint64_t hdf5_bytes);

// The largest HDF5 part whose checksums fit a block of `block_bytes`.
uint64_t user_block_capacity(uint64_t block_bytes);

// The block of a complete file, from its bytes. `elements` are (offset, bytes) of the tensors' data in the file; the
// checksums are computed on the thread pool.
UserBlock make_user_block(const MappedFile& mapped, uint64_t block_bytes,
                          std::vector<std::pair<uint64_t, uint64_t>> elements);

// Reads and checks the block at the start of `file` and the file's size; throws Error(Fault::input, where = `path`).
// Chunks are not checked here.
UserBlock parse_user_block(std::span<const std::byte> file, const std::string& path);

// The checksum field of an encoded block.
uint64_t user_block_checksum(std::span<const std::byte> file);

}  // namespace tercet
