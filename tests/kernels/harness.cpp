#include "harness.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

namespace tercet::test {

namespace {

Values converted(const Values& values, DType dtype) {
  std::vector<std::byte> narrow(values.size() * dtype_size(dtype));
  Values result(values.size());
  convert(DType::f64, values.data(), dtype, narrow.data(), std::ssize(values));
  convert(dtype, narrow.data(), DType::f64, result.data(), std::ssize(values));
  return result;
}

void run_targets(const std::vector<std::string>& devices, std::initializer_list<DType> dtypes,
                 const std::function<void(Runner&)>& body) {
  for (const std::string& device : devices)
    for (const DType dtype : dtypes) {
      Runner runner(device, dtype);
      const bool computes = runner.device().kind() == DeviceKind::cpu ? dtype_size(dtype) >= 4 : dtype != DType::f64;
      if (!computes) continue;
      const std::string target = device + " " + dtype_name(dtype);
      INFO(target);
      body(runner);
    }
}

}  // namespace

Tolerance Tolerance::relative_norm(double bound) {
  Tolerance tolerance(0);
  tolerance.norm = bound;
  return tolerance;
}

double norm_tolerance(DType dtype) {
  if (dtype == DType::bf16) return 6e-3;
  return dtype == DType::f16 ? 1e-3 : 1e-5;
}

void for_each_target(const std::function<void(Runner&)>& body) {
  run_targets(present_devices(), {DType::f64, DType::f32, DType::bf16, DType::f16}, body);
}

void for_each_wide_target(const std::function<void(Runner&)>& body) {
  run_targets(present_devices(), {DType::f64, DType::f32}, body);
}

void for_each_cpu_target(const std::function<void(Runner&)>& body) {
  run_targets({"cpu"}, {DType::f64, DType::f32}, body);
}

Runner::Runner(const std::string& device_name, DType dtype)
    : device_(open_device(device_name)), stream_(device_->create_stream()), dtype_(dtype), input_dtype_(dtype) {}

Runner Runner::oracle(DType dtype) {
  Runner runner("cpu", DType::f64);
  runner.input_dtype_ = dtype;
  return runner;
}

void Runner::record_profile(ProfileRanges& ranges) {
  REQUIRE(device_->kind() == DeviceKind::cpu);
  stream_ = std::make_unique<RecordingStream>(std::move(stream_), ranges);
}

Tolerance Runner::tolerance(double fp64, double fp32) const {
  if (dtype_size(dtype_) == 2) return Tolerance::relative_norm(norm_tolerance(dtype_));
  return is_fp64() ? fp64 : fp32;
}

Values Runner::rounded(const Values& values) const { return converted(values, input_dtype_); }

Tensor Runner::allocate(DType dtype, std::initializer_list<int64_t> shape, int64_t pitch) {
  Tensor tensor(nullptr, dtype, device_->kind(), shape);
  if (pitch > 0) tensor.pitch = pitch;
  const size_t bytes = static_cast<size_t>(tensor.rows() * tensor.pitch) * dtype_size(dtype);
  const size_t shift = misaligned_ && is_floating(dtype) ? dtype_size(dtype) : 0;
  tensor.data = static_cast<std::byte*>(buffers_.emplace_back(*device_, bytes + shift).data()) + shift;
  return tensor;
}

void Runner::write(const Tensor& tensor, const Values& values) {
  REQUIRE(static_cast<int64_t>(values.size()) == tensor.elements());
  const int64_t columns = tensor.columns();
  Values padded(static_cast<size_t>(tensor.rows() * tensor.pitch), std::numeric_limits<double>::quiet_NaN());
  for (int64_t r = 0; r < tensor.rows(); ++r)
    for (int64_t c = 0; c < columns; ++c)
      padded[static_cast<size_t>(r * tensor.pitch + c)] = values[static_cast<size_t>(r * columns + c)];
  std::vector<std::byte> converted(padded.size() * dtype_size(tensor.dtype));
  convert(DType::f64, padded.data(), tensor.dtype, converted.data(), static_cast<int64_t>(padded.size()));
  stream_->copy_to_device(tensor.data, converted.data(), converted.size());
  stream_->synchronize();
}

Tensor Runner::tensor(const Values& values, std::initializer_list<int64_t> shape, int64_t pitch) {
  const Tensor tensor = allocate(dtype_, shape, pitch);
  write(tensor, rounded(values));
  return tensor;
}

Tensor Runner::empty(std::initializer_list<int64_t> shape, int64_t pitch) {
  const Tensor tensor = allocate(dtype_, shape, pitch);
  write(tensor, Values(static_cast<size_t>(tensor.elements()), std::numeric_limits<double>::quiet_NaN()));
  return tensor;
}

Tensor Runner::zeros(std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(dtype_, shape, 0);
  write(tensor, Values(static_cast<size_t>(tensor.elements()), 0.0));
  return tensor;
}

Tensor Runner::statistics(const Values& values, std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(statistics_dtype(dtype_), shape, 0);
  write(tensor, converted(values, statistics_dtype(input_dtype_)));
  return tensor;
}

Tensor Runner::empty_statistics(std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(statistics_dtype(dtype_), shape, 0);
  write(tensor, Values(static_cast<size_t>(tensor.elements()), std::numeric_limits<double>::quiet_NaN()));
  return tensor;
}

Tensor Runner::zero_statistics(std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(statistics_dtype(dtype_), shape, 0);
  write(tensor, Values(static_cast<size_t>(tensor.elements()), 0.0));
  return tensor;
}

Tensor Runner::doubles(const Values& values) {
  const Tensor tensor = allocate(DType::f64, {static_cast<int64_t>(values.size())}, 0);
  write(tensor, values);
  return tensor;
}

Tensor Runner::int32s(const std::vector<int32_t>& values) {
  return int32s(values, {static_cast<int64_t>(values.size())});
}

Tensor Runner::int32s(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape) {
  const Tensor tensor = allocate(DType::i32, shape, 0);
  REQUIRE(static_cast<int64_t>(values.size()) == tensor.elements());
  stream_->copy_to_device(tensor.data, values.data(), values.size() * sizeof(int32_t));
  stream_->synchronize();
  return tensor;
}

Tensor Runner::int64s(const std::vector<int64_t>& values) {
  const Tensor tensor = allocate(DType::i64, {static_cast<int64_t>(values.size())}, 0);
  stream_->copy_to_device(tensor.data, values.data(), values.size() * sizeof(int64_t));
  stream_->synchronize();
  return tensor;
}

Tensor Runner::bytes(const std::vector<uint8_t>& values) {
  const Tensor tensor = allocate(DType::u8, {static_cast<int64_t>(values.size())}, 0);
  stream_->copy_to_device(tensor.data, values.data(), values.size());
  stream_->synchronize();
  return tensor;
}

Values Runner::read(const Tensor& tensor) {
  const int64_t columns = tensor.columns();
  const size_t element = dtype_size(tensor.dtype);
  const int64_t last = (tensor.rows() - 1) * tensor.pitch;  // where the last row starts
  std::vector<std::byte> rows(tensor.rows() == 0 ? 0 : static_cast<size_t>(last + columns) * element);
  stream_->copy_to_host(rows.data(), tensor.data, rows.size());
  stream_->synchronize();
  Values values(static_cast<size_t>(tensor.elements()));
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    const std::byte* row = rows.data() + static_cast<size_t>(r * tensor.pitch) * element;
    double* target = values.data() + r * columns;
    if (tensor.dtype == DType::i32)
      std::copy_n(reinterpret_cast<const int32_t*>(row), columns, target);
    else
      convert(tensor.dtype, row, DType::f64, target, columns);
  }
  return values;
}

Values random_values(int64_t count, uint64_t seed, double scale) {
  const RandomStream stream(seed, RandomPurpose::test);
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = double{static_cast<float>(scale * stream.normal(i))};
  return values;
}

std::vector<int32_t> random_ids(int64_t count, int64_t bound, uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::test, 1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(stream.below(static_cast<uint64_t>(bound), i));
  return ids;
}

std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> offsets = {0};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

double norm_error(const Values& actual, const Values& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const double floor = Tolerance::kNormFloor * std::sqrt(static_cast<double>(actual.size()));
  return actual.empty() ? 0 : std::sqrt(difference) / std::max(std::sqrt(size), floor);
}

void check_close(const Values& actual, const Values& expected, const Tolerance& tolerance, const std::string& what) {
  INFO(what);
  REQUIRE(actual.size() == expected.size());
  if (tolerance.norm > 0) {
    REQUIRE(norm_error(actual, expected) <= tolerance.norm);
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]) / (1 + std::abs(expected[i]));
    if (error <= tolerance.element) continue;
    INFO("element " << i << ": " << actual[i] << ", expected " << expected[i] << ", error " << error);
    REQUIRE(error <= tolerance.element);
  }
}

void check_equal(const Values& actual, const Values& expected, const std::string& what) {
  check_close(actual, expected, 0, what);
}

Values numeric_gradient(const std::function<double(const Values&)>& loss, Values x, double step) {
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    x[i] = center + step;
    const double above = loss(x);
    x[i] = center - step;
    const double below = loss(x);
    x[i] = center;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

double weighted_sum(const Values& values, const Values& weights) {
  REQUIRE(values.size() == weights.size());
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

namespace {

Json load_goldens(const std::string& name) {
  const std::string path = std::string(TERCET_SOURCE_DIR) + "/tests/golden/" + name;
  return parse_json(read_file(path), path);
}

void append_numbers(const Json& json, Values& out) {
  if (!json.is_array()) {
    out.push_back(json.is_bool() ? static_cast<double>(json.as_bool()) : json.as_double());
    return;
  }
  for (const Json& element : json.as_array()) append_numbers(element, out);
}

}  // namespace

const Json& rlhf_goldens() {
  static const Json goldens = load_goldens("rlhf_goldens.json");
  return goldens;
}

const Json& kernel_goldens() {
  static const Json goldens = load_goldens("kernel_goldens.json");
  return goldens;
}

Values numbers(const Json& json) {
  Values values;
  append_numbers(json, values);
  return values;
}

std::vector<int32_t> integers(const Json& json) {
  std::vector<int32_t> values;
  for (const Json& element : json.as_array()) values.push_back(static_cast<int32_t>(element.as_int()));
  return values;
}

}  // namespace tercet::test
