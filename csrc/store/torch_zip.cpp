#include "store/torch_zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/thread_pool.h"

namespace tercet {
namespace {

constexpr int64_t kGatherElements = 1 << 15;
constexpr const char* kSaveAgain = "load it with PyTorch and save it again with torch.save(model.state_dict(), ...)";
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);
constexpr std::string_view kZipMagic("PK\x03\x04", 4);
constexpr std::string_view kPickleName = "data.pkl";

std::optional<DType> dtype_of_storage(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, DType>, 8> types = {{{"DoubleStorage", DType::f64},
                                                                        {"FloatStorage", DType::f32},
                                                                        {"BFloat16Storage", DType::bf16},
                                                                        {"HalfStorage", DType::f16},
                                                                        {"LongStorage", DType::i64},
                                                                        {"IntStorage", DType::i32},
                                                                        {"ByteStorage", DType::u8},
                                                                        {"BoolStorage", DType::u8}}};
  for (const auto& [name, dtype] : types)
    if (name == type) return dtype;
  return std::nullopt;
}

void check_magic(std::string_view file, const std::string& path) {
  refuse_lfs_pointer(file, path);
  if (file.starts_with(kLegacyMagic))
    fail_input("a PyTorch file in the format from before PyTorch 1.6", path, kSaveAgain);
  if (file.starts_with("\x80")) fail_input("a bare pickle, not a file of torch.save", path, kSaveAgain);
  if (!file.starts_with(kZipMagic))
    fail_input("not a PyTorch file (it is no zip archive)", path, "copy or download the file again");
}

// The folder inside the archive, with its slash: that of the single data.pkl.
std::string find_root(const ZipArchive& archive, const std::string& path) {
  std::optional<std::string> root;
  for (const auto& [name, entry] : archive.entries()) {
    const size_t slash = name.rfind('/');
    if (slash == std::string::npos || std::string_view(name).substr(slash + 1) != kPickleName) continue;
    if (root) fail_input("the archive has more than one data.pkl", path, kSaveAgain);
    root = name.substr(0, slash + 1);
  }
  if (!root)
    fail_input("the archive has no data.pkl: it is not a file of torch.save", path, "give a pytorch_model.bin");
  if (archive.find(*root + "constants.pkl") != nullptr)
    fail_input("a TorchScript program, not a state dict", path, kSaveAgain);
  return *root;
}

void check_byte_order(const ZipArchive& archive, const std::string& root, const std::string& path) {
  const ZipArchive::Entry* entry = archive.find(root + "byteorder");
  if (entry != nullptr && archive.text(*entry) != "little")
    fail_input("the file is not little-endian", path, "save it again on a little-endian machine");
}

// The storage index of the last element that a view reaches, or -1 when it has no elements; nullopt on overflow.
std::optional<int64_t> last_element(const PickledTensor& tensor) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return -1;
  int64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    int64_t step = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  return last;
}

// Of a tensor with at least one element.
bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

TorchZipReader::TorchZipReader(const std::string& path) : TensorSource(path), file_(path) {
  check_magic(file_.text(), path);
  const ZipArchive archive(file_.bytes(), path);
  const std::string root = find_root(archive, path);
  check_byte_order(archive, root, path);
  for (PickledTensor& tensor : parse_state_dict(archive.text(*archive.find(root + std::string(kPickleName))), path))
    add_tensor(archive, root, std::move(tensor));
}

void TorchZipReader::add_tensor(const ZipArchive& archive, const std::string& root, PickledTensor tensor) {
  const std::optional<DType> dtype = dtype_of_storage(tensor.storage_type);
  TensorInfo info{tensor.name, dtype.value_or(DType::u8), tensor.shape};
  check_tensor_info(info, path());
  const std::string what = fmt::format("the tensor {}", info.name);
  if (!dtype)
    fail_input(fmt::format("{} is a torch.{}, which tercet does not read", what, tensor.storage_type), path(),
               "convert it to float, half or bfloat16");
  const ZipArchive::Entry* entry = archive.find(root + "data/" + tensor.storage_key);
  if (entry == nullptr)
    fail_input(fmt::format("{} has no data in the archive", what), path(), "copy or download the file again");
  uint64_t storage_bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.storage_elements), dtype_size(*dtype), &storage_bytes) ||
      storage_bytes != entry->bytes)
    fail_input(fmt::format("{} lies in a storage of {} {} elements, but its data has {} bytes", what,
                           tensor.storage_elements, dtype_name(*dtype), entry->bytes),
               path(), "copy or download the file again");
  const std::optional<int64_t> last = last_element(tensor);
  if (!last || *last >= tensor.storage_elements)
    fail_input(fmt::format("{} reaches beyond its storage", what), path(), "copy or download the file again");
  if (info.elements() > tensor.storage_elements)
    fail_input(fmt::format("{} repeats elements of its storage", what), path(),
               "save tensor.contiguous() in its place");
  // Strides that are never taken may have any value in the file.
  for (size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] == 1) tensor.strides[i] = 0;
  const bool contiguous = info.elements() == 0 || is_contiguous(tensor.shape, tensor.strides);
  add(std::move(info));
  views_.push_back({entry->offset, tensor.offset, std::move(tensor.strides), contiguous});
}

void TorchZipReader::gather(size_t index, int64_t first, int64_t count, std::byte* target) const {
  const View& view = views_[index];
  const std::vector<int64_t>& shape = tensors()[index].shape;
  const size_t rank = shape.size();
  const size_t size = dtype_size(tensors()[index].dtype);
  std::array<int64_t, kMaxTensorRank> coordinate{};
  int64_t rest = first;
  int64_t element = view.offset;
  for (size_t i = rank; i-- > 0;) {
    coordinate[i] = rest % shape[i];
    rest /= shape[i];
    element += coordinate[i] * view.strides[i];
  }
  const std::byte* storage = file_.bytes().data() + view.storage;
  for (int64_t done = 0; done < count; ++done) {
    std::memcpy(target + static_cast<size_t>(done) * size, storage + static_cast<size_t>(element) * size, size);
    for (size_t i = rank; i-- > 0;) {
      element += view.strides[i];
      if (++coordinate[i] < shape[i]) break;
      element -= shape[i] * view.strides[i];
      coordinate[i] = 0;
    }
  }
}

void TorchZipReader::do_read(size_t index, DType dtype, int64_t first, int64_t count, void* target) const {
  const DType stored = tensors()[index].dtype;
  const View& view = views_[index];
  const size_t size = dtype_size(stored);
  if (view.contiguous) {
    const auto part = file_.bytes().subspan(view.storage + static_cast<size_t>(view.offset + first) * size,
                                            static_cast<size_t>(count) * size);
    convert_elements(stored, part.data(), dtype, target, count);
    return release_pages(file_, part);
  }
  auto* bytes = static_cast<std::byte*>(target);
  thread_pool().for_ranges(count, kGatherElements, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> block(static_cast<size_t>(end - begin) * size);
    gather(index, first + begin, end - begin, block.data());
    convert(stored, block.data(), dtype, bytes + static_cast<size_t>(begin) * dtype_size(dtype), end - begin);
  });
}

}  // namespace tercet
