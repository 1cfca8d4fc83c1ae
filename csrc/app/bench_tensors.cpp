#include "app/bench_tensors.h"

#include <algorithm>

#include "base/checked.h"
#include "base/rng.h"

namespace tercet {
namespace {

// Normal numbers, kPeriod of them.
const std::vector<float>& normal_pattern() {
  static const std::vector<float> pattern = [] {
    const RandomStream random(1, RandomPurpose::test);
    std::vector<float> values(static_cast<size_t>(BenchTensors::kPeriod));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random.normal(i / 4, 0, static_cast<uint32_t>(i % 4)));
    return values;
  }();
  return pattern;
}

// Values first, first + 1, ... of the pattern, scaled, as elements of the dtype.
std::vector<std::byte> pattern_part(DType dtype, int64_t first, int64_t count, double scale) {
  const std::vector<float>& pattern = normal_pattern();
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] =
        static_cast<float>(scale) * pattern[static_cast<size_t>((first + i) % BenchTensors::kPeriod)];
  std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
  convert(DType::f32, values.data(), dtype, bytes.data(), count);
  return bytes;
}

}  // namespace

Tensor BenchTensors::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(nullptr, dtype, stream_.device().kind(), shape);
  const size_t bytes = static_cast<size_t>(tensor.elements()) * dtype_size(dtype);
  tensor.data = buffers_.emplace_back(stream_.device(), bytes).data();
  allocated_bytes_ += bytes;
  return tensor;
}

// The pattern goes to the device once and is doubled there.
Tensor BenchTensors::random(DType dtype, std::initializer_list<int64_t> shape, double scale) {
  const Tensor tensor = allocate(dtype, shape);
  const int64_t part = std::min(tensor.elements(), kPeriod);
  const std::vector<std::byte> host = pattern_part(dtype, 7919 * random_tensors_++, part, scale);
  stream_.copy_to_device(tensor.data, host.data(), host.size());
  const size_t total = static_cast<size_t>(tensor.elements()) * dtype_size(dtype);
  for (size_t done = host.size(); done < total;) {
    const size_t more = std::min(done, total - done);
    stream_.copy_on_device(static_cast<std::byte*>(tensor.data) + done, tensor.data, more);
    done += more;
  }
  stream_.synchronize();
  return tensor;
}

Tensor BenchTensors::zeros(DType dtype, std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(dtype, shape);
  fill_zero(stream_, tensor);
  return tensor;
}

template <class T>
Tensor BenchTensors::upload(std::span<const T> values) {
  const Tensor tensor = allocate(DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
  stream_.copy_to_device(tensor.data, values.data(), values.size_bytes());
  stream_.synchronize();
  return tensor;
}

Tensor BenchTensors::doubles(std::span<const double> values) { return upload(values); }
Tensor BenchTensors::int32s(std::span<const int32_t> values) { return upload(values); }
Tensor BenchTensors::int64s(std::span<const int64_t> values) { return upload(values); }
Tensor BenchTensors::bytes(std::span<const uint8_t> values) { return upload(values); }

std::vector<int32_t> bench_ids(int64_t count, int64_t bound, uint64_t seed) {
  const RandomStream random(seed, RandomPurpose::test);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(bound), static_cast<uint64_t>(i))));
  return ids;
}

std::vector<int32_t> bench_offsets(int64_t total, int64_t length) {
  std::vector<int32_t> offsets;
  for (int64_t at = 0; at < total; at += length) offsets.push_back(narrow<int32_t>(at));
  offsets.push_back(narrow<int32_t>(total));
  return offsets;
}

}  // namespace tercet
