#include "store/tensor_file.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/thread_pool.h"
#include "store/output_file.h"
#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// Tensors in memory, for the checks that every source shares.
class MemorySource : public TensorSource {
 public:
  MemorySource() : TensorSource("memory") {}
  void put(TensorInfo info) { add(std::move(info)); }

 private:
  void do_read(size_t, DType, int64_t, int64_t count, void* target) const override {
    std::memset(target, 0, static_cast<size_t>(count));
  }
};

// The value of a 16-bit float by its definition.
double value_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  return patterns;
}

}  // namespace

TEST_CASE("all 65,536 fp16 and bf16 patterns widen to their value and narrow back to their bits") {
  const std::vector<uint16_t> patterns = all_patterns();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const int exponent_bits = dtype == DType::f16 ? 5 : 8;
    CAPTURE(dtype_name(dtype));
    std::vector<float> singles(patterns.size());
    std::vector<double> doubles(patterns.size());
    std::vector<uint16_t> from_single(patterns.size());
    std::vector<uint16_t> from_double(patterns.size());
    const auto count = static_cast<int64_t>(patterns.size());
    convert_elements(dtype, as_bytes(patterns.data()), DType::f32, singles.data(), count);
    convert_elements(dtype, as_bytes(patterns.data()), DType::f64, doubles.data(), count);
    convert_elements(DType::f32, as_bytes(singles.data()), dtype, from_single.data(), count);
    convert_elements(DType::f64, as_bytes(doubles.data()), dtype, from_double.data(), count);
    size_t wrong = 0;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const double expected = value_of(patterns[i], exponent_bits);
      wrong += !same(singles[i], expected) || !same(doubles[i], expected);
      if (std::isnan(expected)) {
        wrong += !std::isnan(value_of(from_single[i], exponent_bits)) ||
                 !std::isnan(value_of(from_double[i], exponent_bits));
      } else {
        wrong += from_single[i] != patterns[i] || from_double[i] != patterns[i];
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("narrowing rounds to the nearest 16-bit value and ties to the even one") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const int exponent_bits = dtype == DType::f16 ? 5 : 8;
    CAPTURE(dtype_name(dtype));
    const auto infinity_bits = static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    std::vector<double> inputs;
    std::vector<uint16_t> expected;
    for (uint16_t bits = 0; bits + 1 < infinity_bits; ++bits) {
      const double low = value_of(bits, exponent_bits);
      const double high = value_of(static_cast<uint16_t>(bits + 1), exponent_bits);
      const double middle = low + (high - low) / 2;
      const auto even = static_cast<uint16_t>(bits + (bits & 1));
      inputs.insert(inputs.end(), {std::nextafter(middle, low), middle, std::nextafter(middle, high)});
      expected.insert(expected.end(), {bits, even, static_cast<uint16_t>(bits + 1)});
    }
    std::vector<uint16_t> narrowed(inputs.size());
    convert_elements(DType::f64, as_bytes(inputs.data()), dtype, narrowed.data(), static_cast<int64_t>(inputs.size()));
    CHECK(narrowed == expected);
  }
}

TEST_CASE("a source of any alignment converts to the same values, on one thread and on several") {
  constexpr int64_t kCount = 700'001;
  std::vector<double> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i)) * 100;
  std::vector<float> expected(kCount);
  convert_elements(DType::f64, as_bytes(values.data()), DType::f32, expected.data(), kCount);
  std::vector<std::byte> shifted(values.size() * sizeof(double) + 3);
  std::memcpy(shifted.data() + 3, values.data(), values.size() * sizeof(double));
  for (const int threads : {1, 3}) {
    set_threads(threads);
    std::vector<float> narrowed(kCount);
    convert_elements(DType::f64, shifted.data() + 3, DType::f32, narrowed.data(), kCount);
    CHECK(narrowed == expected);
    std::vector<double> copied(kCount);
    convert_elements(DType::f64, shifted.data() + 3, DType::f64, copied.data(), kCount);
    CHECK(copied == values);
  }
  set_threads(available_cores());
}

TEST_CASE("a source refuses absent tensors, ranges outside a tensor and conversions between integers and reals") {
  MemorySource source;
  source.put({"w", DType::f16, {2, 3}});
  source.put({"ids", DType::i64, {4}});
  std::byte target[64];
  CHECK(source.find("w")->describe() == "w fp16[2, 3]");
  CHECK(source.find("v") == nullptr);
  CHECK_REFUSED(refusal([&] { source.read("v", DType::f32, 0, 1, target); }), "memory: no tensor named \"v\"");
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, 7}, {-1, 1}, {6, 1}, {1, -1}, {std::numeric_limits<int64_t>::max(), 1}})
    CHECK_REFUSED(
        refusal([&, first = first, count = count] { source.read("w", DType::f16, first, count, target); }, Fault::run),
        "outside the tensor w");
  CHECK(refusal([&] { source.read("w", DType::f16, 6, 0, target); }).empty());
  CHECK_REFUSED(refusal([&] { source.read("w", DType::i32, 0, 1, target); }), "cannot be read as int32");
  CHECK_REFUSED(refusal([&] { source.read("ids", DType::i32, 0, 1, target); }), "cannot be read as int32");
  CHECK_REFUSED(refusal([&] { source.read("ids", DType::f32, 0, 1, target); }), "cannot be read as fp32");
}

TEST_CASE("names, ranks and shapes that no weight has are refused") {
  MemorySource source;
  source.put({"w", DType::f32, {1}});
  const auto put = [&](TensorInfo info) { return refusal([&] { source.put(std::move(info)); }); };
  CHECK_REFUSED(put({"w", DType::f32, {2}}), "\"w\" appears twice");
  CHECK_REFUSED(put({"", DType::f32, {2}}), "empty name");
  CHECK_REFUSED(put({std::string(1025, 'n'), DType::f32, {2}}), "1025 bytes");
  CHECK_REFUSED(put({"a\nb", DType::f32, {2}}), "\"a?b\" has a control character");
  CHECK_REFUSED(put({"deep", DType::f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}}), "9 dimensions");
  CHECK_REFUSED(put({"negative", DType::f32, {-1}}), "impossible shape [-1]");
  CHECK_REFUSED(put({"huge", DType::f64, {int64_t{1} << 32, int64_t{1} << 31}}), "impossible shape");
  CHECK(source.tensors().size() == 1);
}

TEST_CASE("parts of a tensor are counted once each") {
  Coverage coverage(10);
  coverage.add(4, 2, "w");
  coverage.add(0, 4, "w");
  coverage.add(8, 2, "w");
  CHECK(coverage.missing() == 2);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{3, 1}, {5, 2}, {7, 2}, {0, 10}, {6, 3}})
    CHECK_REFUSED(refusal([&, first = first, count = count] { coverage.add(first, count, "w"); }, Fault::run),
                  "written twice");
  CHECK_REFUSED(refusal([&] { coverage.add(8, 3, "w"); }, Fault::run), "outside the tensor w");
  coverage.add(6, 0, "w");
  coverage.add(6, 2, "w");
  CHECK(coverage.missing() == 0);
}

TEST_CASE("a Git LFS pointer is called by its name") {
  CHECK_REFUSED(refusal([] { refuse_lfs_pointer("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "m"); }),
                "Git LFS pointer");
  CHECK(refusal([] { refuse_lfs_pointer("version", "m"); }).empty());
}
