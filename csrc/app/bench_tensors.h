// Tensors with random contents for benchmarks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "device/device.h"

namespace tercet {

// Makes tensors and owns their memory. Contents depend on the order of the calls alone.
class BenchTensors {
 public:
  explicit BenchTensors(Stream& stream) : stream_(stream) {}

  // Normal numbers of standard deviation `scale`, of a floating dtype; they repeat after kPeriod elements.
  static constexpr int64_t kPeriod = 262147;
  Tensor random(DType dtype, std::initializer_list<int64_t> shape, double scale = 1);
  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape);
  Tensor doubles(std::span<const double> values);
  Tensor int32s(std::span<const int32_t> values);
  Tensor int64s(std::span<const int64_t> values);
  Tensor bytes(std::span<const uint8_t> values);

  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  Tensor allocate(DType dtype, std::initializer_list<int64_t> shape);
  template <class T>
  Tensor upload(std::span<const T> values);

  Stream& stream_;
  std::vector<Buffer> buffers_;
  size_t allocated_bytes_ = 0;
  int64_t random_tensors_ = 0;
};

// `count` ids below `bound`, a function of the arguments.
std::vector<int32_t> bench_ids(int64_t count, int64_t bound, uint64_t seed);

// 0, length, 2 length, ..., total: offsets of sequences of `length` tokens, the last one shorter when it must be.
std::vector<int32_t> bench_offsets(int64_t total, int64_t length);

}  // namespace tercet
