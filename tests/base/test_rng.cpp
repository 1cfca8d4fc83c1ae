#include <doctest/doctest.h>

#include <cmath>

#include "base/rng.h"

namespace tercet {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST_CASE("Philox4x32-10 gives the published known answers") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams differ in seed, purpose and site and repeat otherwise") {
  const RandomStream a(1, RandomPurpose::shuffle, 0);
  CHECK(a.bits(5, 6, 7) == RandomStream(1, RandomPurpose::shuffle, 0).bits(5, 6, 7));
  CHECK(a.bits(5, 6, 7) == RandomStream::from_key(a.key()).bits(5, 6, 7));
  CHECK(a.key() != RandomStream(2, RandomPurpose::shuffle, 0).key());
  CHECK(a.key() != RandomStream(1, RandomPurpose::sampling, 0).key());
  CHECK(a.key() != RandomStream(1, RandomPurpose::shuffle, 1).key());
}

TEST_CASE("uniform and normal numbers have the moments of their distributions") {
  const RandomStream random(9, RandomPurpose::test);
  constexpr int count = 40000;
  double uniform_sum = 0;
  double normal_sum = 0;
  double normal_squares = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const double u = random.uniform(1, i, i % 7);
    CHECK_UNARY(u > 0 && u < 1);
    uniform_sum += u;
    const double z = random.normal(2, i / 4, i % 4);
    normal_sum += z;
    normal_squares += z * z;
  }
  // Five standard errors: sqrt(1/12/n), sqrt(1/n), sqrt(2/n).
  CHECK(uniform_sum / count == doctest::Approx(0.5).epsilon(5 * std::sqrt(1.0 / 12 / count) / 0.5));
  CHECK(std::fabs(normal_sum / count) < 5 / std::sqrt(count));
  CHECK(normal_squares / count == doctest::Approx(1).epsilon(5 * std::sqrt(2.0 / count)));
}

TEST_CASE("integers below a bound stay below it and reach all values") {
  const RandomStream random(4, RandomPurpose::test);
  std::array<int, 5> seen{};
  for (uint64_t i = 0; i < 500; ++i) ++seen.at(random.below(5, i));
  for (const int count : seen) CHECK(count > 60);
  CHECK(random.below(1, 3) == 0);
}

}  // namespace tercet
