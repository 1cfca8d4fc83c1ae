// The HDF5 file of named tensors and texts, which holds a tercet model or checkpoint.
//
// Layout. A user block, then a plain HDF5 file that any HDF5 tool opens:
//   /tensors/<name>   a dataset per tensor, contiguous, little-endian, row-major. fp64, fp32, int64, int32 and uint8
//   are
//                     HDF5's own types; fp16 is IEEE binary16 (5 exponent bits, bias 15, 10 mantissa bits) and bf16 has
//                     8 exponent bits, bias 127, 7 mantissa bits, both as HDF5 float types. A name keeps its dots; a
//                     '/' in a name makes a group ("adam_m/model.decoder.fc1.weight").
//   /texts/<key>      a scalar dataset per text: a fixed-length, null-padded UTF-8 string. Texts are datasets and not
//                     attributes because an attribute ends at 64 KiB and a vocabulary does not.
// Elements are copied raw; tercet converts them itself.
//
// User block (all integers little-endian 64 bits unless said otherwise), a power of two of at least 512 bytes:
//   0   "TERCETH5"
//   8   format version, 32 bits: 1
//   12  bytes per chunk, 32 bits: 1 MiB
//   16  bytes of the user block
//   24  bytes of the whole file
//   32  number of chunks C = ceil((file - block) / chunk)
//   40  XXH3-64 of the whole user block with these eight bytes as zero
//   48  zeros
//   64  C times XXH3-64 of a chunk of the file after the user block
//   then C bytes: 0 when the chunk holds nothing but elements of tensors, 1 when it holds anything else; zeros to the
//   end
// Before the HDF5 library sees a file, tercet checks the block, the size, and every chunk that is not elements only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/tensor_file.h"

namespace tercet {

// Writes a file under a temporary name and publishes it in finish(): a crash, a full disk or destruction without
// finish() leaves the last good file at `path` untouched and, but for a crash, no temporary file. Not for concurrent
// use.
class Hdf5Writer {
 public:
  // `expected_bytes` is the sum of bytes of all tensors and texts to come: it sizes the user block and reserves the
  // space on disk. More than that plus 1/8 plus 64 MiB is refused by the call that goes beyond.
  // Throws the errors of TemporaryPath (base/temporary_path.h), and Error(Fault::run) when the disk has no room.
  Hdf5Writer(const std::string& path, uint64_t expected_bytes);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  // Declares a tensor whose elements come in parts.
  void create(const TensorInfo& info);

  // Writes elements [first, first + count) of a declared tensor from host memory, converted from `source_dtype` to the
  // tensor's dtype (round to nearest even when narrower). Parts come in any order and must not overlap.
  void write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype, const void* source);

  // create() and the whole tensor.
  void write(const TensorInfo& info, DType source_dtype, const void* source);
  void write(const TensorInfo& info, const void* source) { write(info, info.dtype, source); }

  // Stores a text, JSON most often. Keys are letters, digits, '.', '_' and '-'; a key is set once. The text is UTF-8
  // without null bytes, of any length.
  void set_text(const std::string& key, std::string_view text);

  // Checks that every tensor is complete, writes the user block and publishes the file.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// How much of a file Hdf5Reader checks when it opens it. Chunks that are not checked at opening are checked when their
// elements are first read, so that no element is ever handed out unchecked.
enum class Hdf5Verify {
  all,        // every byte
  structure,  // everything but the elements of tensors: opening a large model takes milliseconds
};

// Opens a file that Hdf5Writer made. Throws Error(Fault::input) with its own message for a file that is no HDF5 file,
// an HDF5 file of another program, one that was not finished, a newer version, a truncated, an extended and an altered
// file.
class Hdf5Reader : public TensorSource {
 public:
  explicit Hdf5Reader(const std::string& path, Hdf5Verify verify = Hdf5Verify::all);
  ~Hdf5Reader() override;

  // Keys of all texts, in the order in which they were set.
  const std::vector<std::string>& text_keys() const;
  bool has_text(std::string_view key) const;
  // Throws Error(Fault::input) when the key is absent. Reads no weights.
  std::string text(std::string_view key) const;

  uint64_t file_bytes() const;

  // Checks all chunks that have not been checked yet; throws like the constructor.
  void verify_all() const;
  // True when every byte of the file has been checked.
  bool verified() const;

  // 16 hexadecimal digits of the user block's checksum, which covers the checksum of every MiB: the identity of the
  // file's contents.
  std::string checksum() const;

 private:
  class Impl;
  void do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const override;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tercet
