#include "harness.h"

#include <limits>

#include "base/file.h"
#include "base/rng.h"

namespace tercet::test {

Runner::Runner(const std::string& device_name, DType dtype)
    : device_(open_device(device_name)), stream_(device_->create_stream()), dtype_(dtype) {}

Tensor Runner::allocate(DType dtype, std::initializer_list<int64_t> shape, int64_t pitch) {
  Tensor tensor(nullptr, dtype, device_->kind(), shape);
  if (pitch > 0) tensor.pitch = pitch;
  const size_t bytes = static_cast<size_t>(tensor.rows() * tensor.pitch) * dtype_size(dtype);
  tensor.data = buffers_.emplace_back(*device_, bytes).data();
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
  write(tensor, values);
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
  Values values(static_cast<size_t>(tensor.elements()));
  const int64_t columns = tensor.columns();
  const size_t row_bytes = static_cast<size_t>(columns) * dtype_size(tensor.dtype);
  std::vector<std::byte> row(row_bytes);
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    stream_->copy_to_host(row.data(), tensor.row_range(r, 1).data, row_bytes);
    stream_->synchronize();
    double* target = values.data() + r * columns;
    if (tensor.dtype == DType::i32)
      std::copy_n(reinterpret_cast<const int32_t*>(row.data()), columns, target);
    else
      convert(tensor.dtype, row.data(), DType::f64, target, columns);
  }
  return values;
}

void for_each_target(const std::function<void(Runner&)>& body) {
  for (const char* device : {"cpu"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      Runner runner(device, dtype);
      const std::string target = std::string(device) + " " + dtype_name(dtype);
      INFO(target);
      body(runner);
    }
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

void check_close(const Values& actual, const Values& expected, double tolerance, const std::string& what) {
  INFO(what);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]) / (1 + std::abs(expected[i]));
    if (error <= tolerance) continue;
    INFO("element " << i << ": " << actual[i] << ", expected " << expected[i] << ", error " << error);
    REQUIRE(error <= tolerance);
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
