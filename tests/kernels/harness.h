// What the tests of ops share: ops run on every device and dtype that is present, on values given and read as fp64.
//
// A test is written once. Its expected values are fp64 and belong to the inputs as the runner's dtype holds them
// (Runner::rounded), so that what is compared is the op's arithmetic and its one rounding.
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
#include "devices.h"
#include "kernels/op.h"
#include "recording_stream.h"

namespace tercet::test {

using Values = std::vector<double>;

// How far actual values may lie from expected ones: each by at most element (1 + |expected|), or, when `norm` is not 0,
// all of them together by the Euclidean norm relative to that of the expected values, which counts at least as much as
// values of kNormFloor each.
struct Tolerance {
  Tolerance(double each) : element(each) {}  // NOLINT(google-explicit-constructor): a number is a tolerance
  static Tolerance relative_norm(double bound);

  static constexpr double kNormFloor = 1e-3;
  double element = 0;
  double norm = 0;
};

// The bound on the relative norm of an op's error on a GPU device: fp32 sums in another order, or one rounding to 11 or
// 8 bits (half a unit: 4.9e-4, 3.9e-3) on top of roundings between the steps of an op.
double norm_tolerance(DType dtype);

// A device, a stream and a dtype to run ops with; owns the memory of the tensors that it makes.
class Runner {
 public:
  Runner(const std::string& device_name, DType dtype);
  // fp64 on the CPU, with inputs as `dtype` holds them: what a runner of that dtype is compared with.
  static Runner oracle(DType dtype);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  DType dtype() const { return dtype_; }
  bool is_fp64() const { return dtype_ == DType::f64; }
  // The emulator runs a GPU's threads one after the other: tests give it less to do.
  bool is_emulated() const { return device_->kind() == DeviceKind::emu; }
  // Floating tensors made from now on start one element past an aligned address, where no pack of 16 bytes does.
  void misalign() { misaligned_ = true; }
  // Records from now on the ranges that a profiler would show. On the CPU only, whose ops take any stream.
  void record_profile(ProfileRanges& ranges);
  // `fp64` or `fp32`, whichever the dtype is; the relative norm in 16-bit dtypes.
  Tolerance tolerance(double fp64, double fp32) const;
  // The values as tensor() stores them.
  Values rounded(const Values& values) const;

  // Tensors of the runner's dtype. `pitch` 0 means contiguous; what lies between the rows is NaN.
  Tensor tensor(const Values& values, std::initializer_list<int64_t> shape, int64_t pitch = 0);
  // Contents are NaN: an op that does not write them is seen.
  Tensor empty(std::initializer_list<int64_t> shape, int64_t pitch = 0);
  Tensor zeros(std::initializer_list<int64_t> shape);
  // The same of statistics_dtype(dtype).
  Tensor statistics(const Values& values, std::initializer_list<int64_t> shape);
  Tensor empty_statistics(std::initializer_list<int64_t> shape);
  Tensor zero_statistics(std::initializer_list<int64_t> shape);
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
  DType input_dtype_;  // what inputs are rounded to first
  bool misaligned_ = false;
  std::vector<Buffer> buffers_;
};

// Calls body(runner) for every device and dtype that is present, within a doctest INFO. The CPU computes in fp64 and
// fp32, a GPU in fp32, bf16 and fp16.
void for_each_target(const std::function<void(Runner&)>& body);
// The same without 16-bit dtypes: for expected values that belong to inputs of many digits, and for ops whose tensors
// are statistics.
void for_each_wide_target(const std::function<void(Runner&)>& body);
// Those of the CPU, which alone looks at indices in memory before it runs.
void for_each_cpu_target(const std::function<void(Runner&)>& body);

// Standard normal numbers that fp32 holds exactly, so that all dtypes start from the same values.
Values random_values(int64_t count, uint64_t seed, double scale = 1);
std::vector<int32_t> random_ids(int64_t count, int64_t bound, uint64_t seed);

// Offsets of sequences of these lengths.
std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths);

// The norm of actual - expected relative to that of expected, in the sense of Tolerance.
double norm_error(const Values& actual, const Values& expected);
void check_close(const Values& actual, const Values& expected, const Tolerance& tolerance, const std::string& what);
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
