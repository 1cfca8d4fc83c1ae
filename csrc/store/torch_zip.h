// A state dict saved by torch.save of PyTorch 1.6 or newer: a zip archive with a pickle and one entry per storage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "store/pickle.h"
#include "store/tensor_file.h"
#include "store/zip_archive.h"

namespace tercet {

// A mapped PyTorch file. Tensors come in the order of the dict; dtypes double, float, bfloat16, half, long, int and
// byte are read as they are and bool as uint8; a tensor with strides is read in row-major order; names may share a
// storage. Throws Error(Fault::input) for everything that ZipArchive and parse_state_dict refuse, for files from before
// PyTorch 1.6, TorchScript and big-endian files, and for a tensor that reaches beyond its storage, has more elements
// than it, or is of another dtype.
class TorchZipReader : public TensorSource {
 public:
  explicit TorchZipReader(const std::string& path);

 private:
  // A strided view; offset and strides are in elements.
  struct View {
    uint64_t storage = 0;  // offset of the storage's bytes in the file
    int64_t offset = 0;
    std::vector<int64_t> strides;
    bool contiguous = true;
  };

  void add_tensor(const ZipArchive& archive, const std::string& root, PickledTensor tensor);
  void do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const override;
  // Copies elements [first, first + count) of a view that is not contiguous, without conversion.
  void gather(size_t index, int64_t first, int64_t count, std::byte* target) const;

  MappedFile file_;
  std::vector<View> views_;
};

}  // namespace tercet
