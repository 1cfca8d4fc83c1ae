// Randomness is a function: a random number depends on (seed, purpose, site, sample, position, lane) and on nothing
// else, so that it is the same for every number of ranks, split, order and resumption.
//
// Philox4x32-10: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace tercet {

// What a random number is for. Values are part of the file format of runs: append only.
enum class RandomPurpose : uint32_t {
  init_weights = 1,
  dropout = 2,
  shuffle = 3,
  sampling = 4,
  split = 5,
  data_generator = 6,
  bootstrap = 7,
  test = 8,
};

// One Philox4x32-10 block of counter `counter` under key `key`.
constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// A family of random numbers: key = mix(seed, purpose, site). Cheap to copy, no state.
class RandomStream {
 public:
  // The stream of a key that another stream gave (ops take keys by value).
  static constexpr RandomStream from_key(uint64_t key) {
    RandomStream stream(0, RandomPurpose::test);
    stream.key_ = key;
    return stream;
  }

  // `site` tells apart uses of one purpose (a dropout layer, an epoch, a PPO iteration).
  constexpr RandomStream(uint64_t seed, RandomPurpose purpose, uint64_t site = 0)
      : key_(mix(mix(seed + 0x9E3779B97F4A7C15u) ^ (mix(static_cast<uint64_t>(purpose)) + 3 * mix(site + 1)))) {}

  // Four random words of (sample, position, lane block). Lane l of an op is word l % 4 of block l / 4.
  constexpr std::array<uint32_t, 4> block(uint64_t sample, uint32_t position, uint32_t lane_block) const {
    return philox4x32_10({static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), position, lane_block},
                         {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
  }

  constexpr uint32_t bits(uint64_t sample, uint32_t position = 0, uint32_t lane = 0) const {
    return block(sample, position, lane / 4)[lane % 4];
  }

  // Uniform in (0, 1): (k + 1/2) / 2^32. Never 0 and never 1 in double.
  constexpr double uniform(uint64_t sample, uint32_t position = 0, uint32_t lane = 0) const {
    return to_uniform(bits(sample, position, lane));
  }

  // Standard normal by Box-Muller on words 2j and 2j+1 of the block; lane parity picks cosine or sine.
  double normal(uint64_t sample, uint32_t position = 0, uint32_t lane = 0) const;

  // Uniform integer in [0, bound), bound > 0, by 64-bit multiply-shift (bias below bound / 2^64).
  constexpr uint64_t below(uint64_t bound, uint64_t sample, uint32_t position = 0) const {
    const auto words = block(sample, position, 0);
    const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
    return static_cast<uint64_t>((static_cast<Uint128>(word) * bound) >> 64);
  }

  static constexpr double to_uniform(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

  // The 64-bit Philox key, for ops that take it by value.
  constexpr uint64_t key() const { return key_; }

 private:
  __extension__ typedef unsigned __int128 Uint128;  // NOLINT(modernize-use-using): nvcc takes no attribute on `using`

  // SplitMix64's finaliser.
  static constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  uint64_t key_;
};

}  // namespace tercet
