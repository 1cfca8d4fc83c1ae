#include "kernels/simd.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

const std::vector<const char*> kIsas = {"baseline", "avx2", "avx512"};

// Calls body() with every instruction set of this machine.
void for_each_isa(const std::function<void()>& body) {
  const char* chosen = simd_ops().isa;
  for (const char* isa : kIsas) {
    if (!select_simd_ops(isa)) continue;
    INFO(isa);
    body();
  }
  REQUIRE(select_simd_ops(chosen));
}

double ulps(float actual, double expected) {
  const double exponent = std::max(std::floor(std::log2(std::abs(expected))), -126.0);
  return std::abs(double{actual} - expected) / std::exp2(exponent - 23);
}

}  // namespace

TEST_CASE("fp32 exp is within 2 ulp from its smallest normal result to 1, and 0 below") {
  for_each_isa([] {
    const RowOps<float>& ops = row_ops<float>();
    double worst = 0;
    for (int start = 0; start < 20000; ++start) {
      float x[16];
      float e[16];
      for (int i = 0; i < 16; ++i) e[i] = x[i] = -87.3f * static_cast<float>(start * 16 + i) / 320000.0f;
      const float zero = 0;
      ops.known_softmax(e, 16, 1, 16, 16, &zero, 0);
      for (int i = 0; i < 16; ++i) worst = std::max(worst, ulps(e[i], std::exp(double{x[i]})));
    }
    CHECK(worst <= 2);
    float special[16] = {0, -0.0f, -87.33654f, -87.34f, -1000, -INFINITY, NAN, -NAN, -1e-30f};
    const float zero = 0;
    ops.known_softmax(special, 16, 1, 16, 16, &zero, 0);
    CHECK(special[0] == 1);
    CHECK(special[1] == 1);
    CHECK(special[2] >= std::numeric_limits<float>::min());
    CHECK(special[3] == 0);
    CHECK(special[4] == 0);
    CHECK(special[5] == 0);
    CHECK(std::isnan(special[6]));
    CHECK(std::isnan(special[7]));
    CHECK(special[8] == 1);
  });
}

TEST_CASE("fp32 Gumbel noise is that of the bits over their whole range") {
  for_each_isa([] {
    std::vector<uint32_t> bits = {0,           1,           2,           0x7FFFFFFFu, 0x80000000u,
                                  3037000499u, 3037000500u, 0xFFFFFFFEu, 0xFFFFFFFFu};
    const RandomStream stream(1, RandomPurpose::test);
    while (bits.size() < 100003) bits.push_back(stream.bits(bits.size()));
    const std::vector<float> zeros(bits.size(), 0.0f);
    std::vector<float> z(bits.size());
    row_ops<float>().gumbel(z.data(), zeros.data(), 1, bits.data(), static_cast<int64_t>(bits.size()));
    double worst = 0;
    for (size_t i = 0; i < bits.size(); ++i) {
      const double expected = -std::log(-std::log((bits[i] + 0.5) * 0x1p-32));
      worst = std::max(worst, std::abs(double{z[i]} - expected) / (1 + std::abs(expected)));
    }
    CHECK(worst <= 3e-7);  // two logarithms of 2 ulp each
  });
}

TEST_CASE("random words are those of RandomStream on every instruction set") {
  const RandomStream stream(99, RandomPurpose::dropout, 5);
  for_each_isa([&] {
    for (const uint32_t first : {0u, 3u, 0xFFFFFFFCu})
      for (const int64_t blocks : {1, 2, 7, 16, 19}) {
        std::vector<uint32_t> words(static_cast<size_t>(4 * blocks));
        simd_ops().random_bits(stream.key(), 0x123456789ABCDEFu, 77, first, blocks, words.data());
        for (int64_t b = 0; b < blocks; ++b) {
          const auto expected = stream.block(0x123456789ABCDEFu, 77, first + static_cast<uint32_t>(b));
          for (size_t w = 0; w < 4; ++w) CHECK(words[static_cast<size_t>(4 * b) + w] == expected[w]);
        }
      }
  });
}

TEST_CASE("block products and transposes are right at all edge sizes") {
  for_each_isa([] {
    const RowOps<double>& ops = row_ops<double>();
    for (const int64_t m : {1, 2, 3, 5, 8, 13, 16})
      for (const int64_t n : {1, 2, 7, 8, 17, 33})
        for (const int64_t k : {0, 1, 5, 19}) {
          const Values a = random_values(m * k + 1, 1);
          const Values b = random_values(n * k + 1, 2);
          Values expected(static_cast<size_t>(m * n));
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j)
              for (int64_t p = 0; p < k; ++p)
                expected[static_cast<size_t>(i * n + j)] +=
                    a[static_cast<size_t>(i * k + p)] * b[static_cast<size_t>(j * k + p)];
          Values b_transposed(static_cast<size_t>(n * k + 1));
          ops.transpose(n, k, b.data(), k, b_transposed.data(), n);
          Values a_transposed(static_cast<size_t>(m * k + 1));
          ops.transpose(m, k, a.data(), k, a_transposed.data(), m);
          Values c(expected.size(), NAN);
          ops.gemm(m, n, k, a.data(), k, 1, b_transposed.data(), n, c.data(), n);
          check_close(c, expected, 1e-14, "a b");
          ops.gemm_transposed(m, n, k, a.data(), k, b.data(), k, c.data(), n);
          check_close(c, expected, 1e-14, "a b^T");
          ops.gemm_add(m, n, k, a_transposed.data(), 1, m, b_transposed.data(), n, c.data(), n);
          for (double& value : expected) value *= 2;
          check_close(c, expected, 1e-14, "a b added");
        }
  });
}

TEST_CASE("an fp32 transpose moves every element") {
  for_each_isa([] {
    for (const int64_t rows : {1, 4, 6, 16, 33})
      for (const int64_t columns : {1, 4, 7, 16, 50}) {
        std::vector<float> x(static_cast<size_t>(rows * columns));
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
        std::vector<float> out(x.size(), NAN);
        row_ops<float>().transpose(rows, columns, x.data(), columns, out.data(), rows);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j)
            CHECK(out[static_cast<size_t>(j * rows + i)] == x[static_cast<size_t>(i * columns + j)]);
      }
  });
}

TEST_CASE("reductions are right at all lengths, and max ignores NaN") {
  for_each_isa([] {
    for (const int64_t n : {0, 1, 3, 15, 16, 17, 64, 100, 1025}) {
      const Values wide = random_values(n, 1);
      std::vector<float> x(wide.begin(), wide.end());
      double sum = 0;
      double dot = 0;
      double spread = 0;
      float max = -INFINITY;
      for (const float value : x) {
        sum += value;
        dot += double{value} * value;
        spread += (double{value} - 0.5) * (double{value} - 0.5);
        max = std::max(max, value);
      }
      const RowOps<float>& ops = row_ops<float>();
      check_close({double{ops.sum(x.data(), n)}}, {sum}, 1e-5, "sum");
      check_close({double{ops.dot(x.data(), x.data(), n)}}, {dot}, 1e-6, "dot");
      check_close({double{ops.sum_of_squared_differences(x.data(), 0.5f, n)}}, {spread}, 1e-6, "spread");
      check_close({ops.sum_of_squares(x.data(), n)}, {dot}, 1e-14, "squares");
      CHECK(ops.max(x.data(), n) == max);
      if (n < 3) continue;
      x[0] = NAN;
      x[static_cast<size_t>(n - 1)] = 100;
      CHECK(ops.max(x.data(), n) == 100);
      CHECK(ops.argmax(x.data(), n) == n - 1);
      x[1] = 100;
      CHECK(ops.argmax(x.data(), n) == 1);
    }
  });
}
