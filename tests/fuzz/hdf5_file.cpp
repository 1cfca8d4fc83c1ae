// Fuzzer of the reader of tercet's own files. An input is a file in which runs of zeros are packed (pack_zeros.py);
// when its first byte is odd the user block is made right again around the HDF5 part, sizes and checksums, as someone
// who means harm would.
#include "store/hdf5_file.h"

#include <cstring>

#include "fuzz/fuzz.h"
#include "fuzz/readable.h"
#include "store/user_block.h"

namespace tercet::fuzz {
namespace {

constexpr size_t kBlockBytesOffset = 16;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

uint16_t take_16(std::string_view& packed) {
  uint16_t value = 0;
  std::memcpy(&value, packed.data(), sizeof(value));
  packed.remove_prefix(sizeof(value));
  return value;
}

// (number of zeros, number of bytes, these bytes)...
std::string unpack(std::string_view packed) {
  std::string file;
  while (packed.size() >= 4 && file.size() < kMaxFileBytes) {
    file.append(take_16(packed), '\0');
    const size_t count = std::min<size_t>(take_16(packed), packed.size());
    file.append(packed.substr(0, count));
    packed.remove_prefix(count);
  }
  return file;
}

// The file with a user block that fits it, where it has room for one.
std::string repaired(const std::string& file) {
  uint64_t block_bytes = 0;
  if (file.size() > 1024) std::memcpy(&block_bytes, file.data() + kBlockBytesOffset, sizeof(block_bytes));
  if (block_bytes != 512 && block_bytes != 1024) return file;
  UserBlock block{.block_bytes = block_bytes, .file_bytes = file.size(), .checksums = {}, .structure = {}};
  const auto bytes = std::as_bytes(std::span(file));
  for (uint64_t begin = block_bytes; begin < file.size(); begin += kChunkBytes) {
    block.checksums.push_back(hash64(bytes.subspan(begin, std::min<size_t>(kChunkBytes, file.size() - begin))));
    block.structure.push_back(1);
  }
  const std::vector<std::byte> encoded = block.encode();
  return std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()) + file.substr(block_bytes);
}

}  // namespace
}  // namespace tercet::fuzz

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string file = fuzz::unpack(fuzz::text_of(data + 1, size - 1));
  const std::string path = fuzz::folder().write("model.h5", data[0] % 2 == 1 ? fuzz::repaired(file) : file);
  for (const Hdf5Verify verify : {Hdf5Verify::structure, Hdf5Verify::all})
    fuzz::reads([&] {
      const Hdf5Reader reader(path, verify);
      for (const std::string& key : reader.text_keys()) reader.text(key);
      fuzz::read_tensors(reader);
    });
  return 0;
}
