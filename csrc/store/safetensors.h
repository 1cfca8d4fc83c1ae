// safetensors: eight bytes of header length, a JSON header, the elements. Format and checks follow the published
// specification and its reference implementation (huggingface/safetensors).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "store/output_file.h"
#include "store/tensor_file.h"

namespace tercet {

// The "__metadata__" of a file, in its order.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// A mapped safetensors file. Tensors come in the order of their bytes. dtypes F64 F32 BF16 F16 I64 I32 U8 are read as
// they are and BOOL as uint8. Throws Error(Fault::input) that names the file and the tensor when, in this order: the
// file is shorter than 8 bytes; the header is longer than 100,000,000 bytes or than the file; the header holds more
// than kMaxTensorsPerFile tensors; it is not valid UTF-8 or JSON of the right shape, or repeats a key; the data offsets
// do not tile the buffer from 0; a shape's product overflows; its bits do not fill bytes; its bytes differ from the
// offsets' distance; bytes follow the last tensor or are missing; the dtype is another one of the format's.
class SafetensorsReader : public TensorSource {
 public:
  explicit SafetensorsReader(const std::string& path);

  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  struct Entry;

  void read_header();
  Entry parse_entry(const std::string& name, const class Json& value) const;
  void add_entries(std::vector<Entry> entries, uint64_t buffer_bytes);
  void do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const override;

  MappedFile file_;
  SafetensorsMetadata metadata_;
  std::vector<uint64_t> offsets_;  // of each tensor, from the start of the file
};

// Writes a safetensors file of known tensors under a temporary name; finish() publishes it. Bytes are laid out as the
// reference implementation does: wider dtypes first, then by name; the header is padded to a multiple of 8.
class SafetensorsWriter {
 public:
  // Throws Error(Fault::run) when the file cannot be created or the disk has no room. transformers asks for the
  // metadata "format": "pt".
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    const SafetensorsMetadata& metadata = {{"format", "pt"}});

  // Writes elements [first, first + count) from host memory, converted from `source_dtype`. Parts come in any order and
  // must not overlap.
  void write_part(const std::string& name, int64_t first, int64_t count, DType source_dtype, const void* source);

  // The whole tensor.
  void write(const std::string& name, DType source_dtype, const void* source);

  // Checks that every tensor is complete and publishes the file.
  void finish();

 private:
  struct Slot {
    TensorInfo info;
    uint64_t offset = 0;
    Coverage coverage;
  };

  Slot& slot(const std::string& name);

  OutputFile output_;
  std::unordered_map<std::string, Slot> slots_;
};

}  // namespace tercet
