// The register layouts of ldmatrix and mma, on integers, which every order of summation adds exactly.
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "device/dtype.h"
#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// Integers in [-8, 8]: products and their sums of 16 are exact in fp32.
std::vector<float> small_integers(size_t count, uint64_t site) {
  const RandomStream random(5, RandomPurpose::test, site);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(random.below(17, i)) - 8;
  return values;
}

template <class Element>
std::vector<uint16_t> bits_of(const std::vector<float>& values, Element (*round)(float)) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(round(value).bits);
  return bits;
}

std::vector<float> plain_product(const std::vector<float>& a, const std::vector<float>& b, std::vector<float> c) {
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column)
      for (size_t k = 0; k < 16; ++k) c[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
  return c;
}

template <class Element>
void check_product(Bench& bench, Element (*round)(float),
                   void (*multiply)(Stream&, const uint16_t*, const uint16_t*, float*)) {
  const auto a = small_integers(16 * 16, 1), b = small_integers(16 * 8, 2), c = small_integers(16 * 8, 3);
  float* sums = bench.put(c);
  multiply(bench.stream(), bench.put(bits_of(a, round)), bench.put(bits_of(b, round)), sums);
  CHECK(bench.get(sums, c.size()) == plain_product(a, b, c));
}

}  // namespace

TEST_CASE(
    "load_matrices gives lane l elements 2 (l % 4) and the next of row l / 4 of each matrix, and of its transpose") {
  in_every_order([](Bench& bench) {
    std::vector<uint16_t> matrices(4 * 64);
    std::iota(matrices.begin(), matrices.end(), uint16_t{1000});
    auto* registers = bench.empty<uint32_t>(128);
    auto* transposed = bench.empty<uint32_t>(128);
    load_matrix_registers(bench.stream(), bench.put(matrices), registers, transposed);
    const auto plain = bench.get(registers, 128), turned = bench.get(transposed, 128);
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const unsigned first = lane / 4, second = lane % 4 * 2;
        const auto element = [&](unsigned row, unsigned column) { return 1000 + matrix * 64 + row * 8 + column; };
        CHECK(plain[lane * 4 + matrix] == (element(first, second) | element(first, second + 1) << 16));
        CHECK(turned[lane * 4 + matrix] == (element(second, first) | element(second + 1, first) << 16));
      }
  });
}

TEST_CASE("mma_16x8x16 multiplies bf16 and fp16 exactly where sums are exact") {
  in_every_order([](Bench& bench) {
    check_product<BFloat16>(bench, to_bfloat16, multiply_bf16);
    check_product<Float16>(bench, to_float16, multiply_fp16);
  });
}

TEST_CASE("pack_pair rounds to nearest even and puts the first element into the lower half") {
  Bench bench;
  std::vector<float> values = small_integers(64, 4);
  values[0] = 1.00390625f;  // half way between two bf16: to the even one
  values[1] = 1.01171875f;  // half way: up to the even one
  values[2] = 65520.0f;     // fp16 overflows to infinity
  values[3] = 0x1.8p-24f;   // half way between two subnormal fp16
  auto* bf16 = bench.empty<uint32_t>(32);
  auto* fp16 = bench.empty<uint32_t>(32);
  pack_pairs(bench.stream(), bench.put(values), bf16, fp16);
  const auto packed_bf16 = bench.get(bf16, 32), packed_fp16 = bench.get(fp16, 32);
  for (size_t i = 0; i < 32; ++i) {
    CHECK(packed_bf16[i] == (to_bfloat16(values[2 * i]).bits | uint32_t{to_bfloat16(values[2 * i + 1]).bits} << 16));
    CHECK(packed_fp16[i] == (to_float16(values[2 * i]).bits | uint32_t{to_float16(values[2 * i + 1]).bits} << 16));
  }
}
