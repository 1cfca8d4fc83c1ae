#include "store/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace tercet {
namespace {

constexpr int64_t kBlockElements = 1 << 14;
constexpr int64_t kTaskElements = 1 << 18;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

bool aligned(const std::byte* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

void convert_range(DType source_dtype, const std::byte* source, DType target_dtype, std::byte* target, int64_t count) {
  const size_t size = dtype_size(source_dtype);
  if (source_dtype == target_dtype || aligned(source, size))
    return convert(source_dtype, source, target_dtype, target, count);
  alignas(64) std::byte block[kBlockElements * sizeof(double)];
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const int64_t part = std::min(kBlockElements, count - done);
    std::memcpy(block, source + static_cast<size_t>(done) * size, static_cast<size_t>(part) * size);
    convert(source_dtype, block, target_dtype, target + static_cast<size_t>(done) * dtype_size(target_dtype), part);
  }
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    TERCET_REQUIRE(size >= 0, "the tensor {} has a negative dimension", name);
    product = checked_mul(product, size);
  }
  return product;
}

int64_t TensorInfo::bytes() const { return checked_mul(elements(), static_cast<int64_t>(dtype_size(dtype))); }

std::string TensorInfo::describe() const { return fmt::format("{} {}{}", name, dtype_name(dtype), shape_text(shape)); }

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

const TensorInfo* TensorSource::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& TensorSource::at(std::string_view name) const { return tensors_[index_of(name)]; }

size_t TensorSource::index_of(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end())
    fail_input(fmt::format("no tensor named \"{}\"", printable(name)), path_,
               "list the tensors that are there with `tercet info`");
  return found->second;
}

void TensorSource::read(std::string_view name, DType dtype, int64_t first, int64_t count, void* target) const {
  const size_t index = index_of(name);
  const TensorInfo& info = tensors_[index];
  TERCET_REQUIRE(first >= 0 && count >= 0 && first <= info.elements() - count,
                 "elements [{}, {} + {}) are outside the tensor {}", first, first, count, info.describe());
  if (!convertible(info.dtype, dtype))
    fail_input(fmt::format("the tensor {} cannot be read as {}", info.describe(), dtype_name(dtype)), path_,
               "store it in a floating dtype");
  if (count > 0) do_read(index, dtype, first, count, target);
}

void TensorSource::read(std::string_view name, DType dtype, void* target) const {
  read(name, dtype, 0, at(name).elements(), target);
}

void TensorSource::add(TensorInfo info) {
  check_tensor_info(info, path_);
  if (tensors_.size() == kMaxTensorsPerFile)
    fail_input(fmt::format("more than {} tensors", kMaxTensorsPerFile), path_, "give a file of model weights");
  if (!index_.emplace(info.name, tensors_.size()).second)
    fail_input(fmt::format("the tensor name \"{}\" appears twice", printable(info.name)), path_,
               "write the file again");
  tensors_.push_back(std::move(info));
}

std::string printable(std::string_view text) {
  std::string result(text.substr(0, 80));
  std::replace_if(result.begin(), result.end(), is_control, '?');
  return text.size() > 80 ? result + "..." : result;
}

void check_tensor_info(const TensorInfo& info, const std::string& where) {
  const std::string remedy = "write the file again";
  if (info.name.empty()) fail_input("a tensor has an empty name", where, remedy);
  if (info.name.size() > kMaxTensorNameBytes)
    fail_input(fmt::format("the tensor name \"{}\" has {} bytes, more than {}", printable(info.name), info.name.size(),
                           kMaxTensorNameBytes),
               where, remedy);
  if (std::any_of(info.name.begin(), info.name.end(), is_control))
    fail_input(fmt::format("the tensor name \"{}\" has a control character", printable(info.name)), where, remedy);
  if (info.shape.size() > kMaxTensorRank)
    fail_input(fmt::format("the tensor {} has {} dimensions, more than {}", printable(info.name), info.shape.size(),
                           kMaxTensorRank),
               where, remedy);
  int64_t bytes = static_cast<int64_t>(dtype_size(info.dtype));
  for (const int64_t size : info.shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      fail_input(fmt::format("the tensor {} has the impossible shape {}", printable(info.name), shape_text(info.shape)),
                 where, remedy);
}

void refuse_lfs_pointer(std::string_view text, const std::string& path) {
  if (text.starts_with("version https://git-lfs."))
    fail_input("a Git LFS pointer, not the weights themselves", path, "fetch the weights with `git lfs pull`");
}

bool convertible(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

void convert_elements(DType source_dtype, const std::byte* source, DType target_dtype, void* target, int64_t count) {
  auto* bytes = static_cast<std::byte*>(target);
  const size_t source_size = dtype_size(source_dtype);
  const size_t target_size = dtype_size(target_dtype);
  const auto range = [&](int64_t begin, int64_t end) {
    convert_range(source_dtype, source + static_cast<size_t>(begin) * source_size, target_dtype,
                  bytes + static_cast<size_t>(begin) * target_size, end - begin);
  };
  if (count <= kTaskElements) return range(0, count);
  thread_pool().for_ranges(count, kTaskElements, range);
}

}  // namespace tercet
