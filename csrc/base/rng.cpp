#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace tercet {

double RandomStream::normal(uint64_t sample, uint32_t position, uint32_t lane) const {
  const auto words = block(sample, position, lane / 4);
  const uint32_t pair = (lane % 4) & 2u;
  const double radius = std::sqrt(-2.0 * std::log(to_uniform(words[pair])));
  const double angle = 2.0 * std::numbers::pi * to_uniform(words[pair + 1]);
  return radius * (lane % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace tercet
