// store: files of named tensors. Reads safetensors, PyTorch zip files and HDF5, writes safetensors and HDF5; it knows
// nothing of OPT. Every reader checks a file whole before it hands out an element, and no file can make it run code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/dtype.h"

namespace tercet {

// Bounds that every reader and writer keeps.
constexpr int kMaxTensorRank = 8;
constexpr size_t kMaxTensorNameBytes = 1024;
constexpr size_t kMaxTensorsPerFile = 100'000;

// What a file says about one tensor. Elements are row-major; a scalar has an empty shape.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  // The product of the shape; throws Error(Fault::run) when negative or beyond 63 bits.
  int64_t elements() const;
  // elements() * dtype_size(dtype).
  int64_t bytes() const;
  // "model.decoder.embed_tokens.weight bf16[50272, 768]"
  std::string describe() const;

  bool operator==(const TensorInfo&) const = default;
};

// "[50272, 768]"
std::string shape_text(const std::vector<int64_t>& shape);

// A readable source of named tensors: one file or a set of shards. Reading is const and may be done by several threads.
class TensorSource {
 public:
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  virtual ~TensorSource() = default;

  // The file, or the folder of a set of shards.
  const std::string& path() const { return path_; }

  // All tensors, in the order of the file. Names are distinct.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  // The tensor of that name, or nullptr.
  const TensorInfo* find(std::string_view name) const;

  // The tensor of that name; throws Error(Fault::input) that names the file when it is absent.
  const TensorInfo& at(std::string_view name) const;

  // Reads elements [first, first + count) of a tensor in row-major order, converted to `dtype`, into host memory of
  // count * dtype_size(dtype) bytes. Exact to a wider floating type; to a narrower one rounds to nearest, ties to even.
  // Throws Error(Fault::input) when the tensor is absent, when integers would become floating or the reverse, or when
  // the file's contents fail a check; Error(Fault::run) when the range is outside the tensor.
  void read(std::string_view name, DType dtype, int64_t first, int64_t count, void* target) const;

  // The whole tensor.
  void read(std::string_view name, DType dtype, void* target) const;

  // The whole tensor as a vector of T (double, float, BFloat16, Float16, int64_t, int32_t or uint8_t).
  template <class T>
  std::vector<T> read_vector(std::string_view name) const {
    std::vector<T> values(static_cast<size_t>(at(name).elements()));
    read(name, DTypeOf<T>::value, values.data());
    return values;
  }

 protected:
  explicit TensorSource(std::string path) : path_(std::move(path)) {}

  // Appends a tensor; throws Error(Fault::input) for a name that is empty, too long, not printable or already there, a
  // rank above kMaxTensorRank, or more than kMaxTensorsPerFile tensors.
  void add(TensorInfo info);

 private:
  // tensors()[index]; the range and the pair of dtypes are already checked and count > 0.
  virtual void do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const = 0;

  size_t index_of(std::string_view name) const;

  std::string path_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// A text of a file as it may appear in a message: at most 80 bytes, control characters as '?'.
std::string printable(std::string_view text);

// Throws Error(Fault::input, where = `where`) for a name, rank, shape or dtype that tercet does not keep in a file.
void check_tensor_info(const TensorInfo& info, const std::string& where);

// Throws Error(Fault::input) when `text` is the small text file that Git LFS leaves in place of a large file.
void refuse_lfs_pointer(std::string_view text, const std::string& path);

// True when elements of `from` may be read or written as `to`: equal, or both floating.
bool convertible(DType from, DType to);

// convert() for large arrays and for a source of any alignment: by blocks, on the thread pool.
void convert_elements(DType source_dtype, const std::byte* source, DType target_dtype, void* target, int64_t count);

}  // namespace tercet
