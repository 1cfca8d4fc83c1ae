// What the tests of ops share: ops run on every device and dtype that is present, on values given and read as fp64.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/device.h"
#include "kernels/op.h"

namespace tercet::test {

using Values = std::vector<double>;

// A device, a stream and a dtype to run ops with; owns the memory of the tensors that it makes.
class Runner {
 public:
  Runner(const std::string& device_name, DType dtype);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  DType dtype() const { return dtype_; }
  bool is_fp64() const { return dtype_ == DType::f64; }
  // `fp64` or `fp32`, whichever the dtype is.
  double tolerance(double fp64, double fp32) const { return is_fp64() ? fp64 : fp32; }

  // Tensors of the runner's dtype. `pitch` 0 means contiguous; what lies between the rows is NaN.
  Tensor tensor(const Values& values, std::initializer_list<int64_t> shape, int64_t pitch = 0);
  // Contents are NaN: an op that does not write them is seen.
  Tensor empty(std::initializer_list<int64_t> shape, int64_t pitch = 0);
  Tensor zeros(std::initializer_list<int64_t> shape);
  Tensor doubles(const Values& values);
  Tensor int32s(const std::vector<int32_t>& values);
  Tensor int32s(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape);
  Tensor int64s(const std::vector<int64_t>& values);
  Tensor bytes(const std::vector<uint8_t>& values);

  // The elements of a floating or int32 tensor, row after row.
  Values read(const Tensor& tensor);

 private:
  Tensor allocate(DType dtype, std::initializer_list<int64_t> shape, int64_t pitch);
  void write(const Tensor& tensor, const Values& values);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  DType dtype_;
  std::vector<Buffer> buffers_;
};

// Calls body(runner) for every device and dtype that this machine offers, within a doctest SUBCASE-like context.
void for_each_target(const std::function<void(Runner&)>& body);

// Standard normal numbers that fp32 holds exactly, so that all dtypes start from the same values.
Values random_values(int64_t count, uint64_t seed, double scale = 1);
std::vector<int32_t> random_ids(int64_t count, int64_t bound, uint64_t seed);

// Offsets of sequences of these lengths.
std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths);

// Checks |actual - expected| <= tolerance (1 + |expected|) for every element.
void check_close(const Values& actual, const Values& expected, double tolerance, const std::string& what);
void check_equal(const Values& actual, const Values& expected, const std::string& what);

// Central differences of loss(x) in fp64.
Values numeric_gradient(const std::function<double(const Values&)>& loss, Values x, double step = 1e-5);

double weighted_sum(const Values& values, const Values& weights);

// Golden values of tests/golden/.
const Json& rlhf_goldens();
const Json& kernel_goldens();
// The numbers of a nested array, row after row.
Values numbers(const Json& json);
std::vector<int32_t> integers(const Json& json);

}  // namespace tercet::test
