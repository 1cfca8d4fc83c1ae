// Shuffles, votes, reductions and atomics, in whole and partial warps.
#include <algorithm>
#include <numeric>

#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// The lane that shuffle `row` of fixtures.h reads in a warp, or -1 when no lane there is defined.
int source_lane(int row, int lane, int lanes) {
  const int group = lane / 8 * 8;
  const int sources[] = {5,         lane ^ 3, lane >= 2 ? lane - 2 : lane,    lane + 2 < 32 ? lane + 2 : lane,
                         group + 1, lane ^ 4, lane > group ? lane - 1 : lane, lane < group + 7 ? lane + 1 : lane,
                         lane ^ 16};
  return sources[row] < lanes ? sources[row] : -1;
}

std::vector<int> numbers_from(int first, unsigned count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

TEST_CASE("shuffles read the lane that their rule names, also in a partial last warp") {
  in_every_order([](Bench& bench) {
    for (const unsigned threads : {32u, 64u, 75u}) {
      const auto in = numbers_from(100, threads);
      auto* out = bench.empty<int>(9 * threads);
      shuffles(bench.stream(), threads, bench.put(in), out);
      const auto result = bench.get(out, 9 * threads);
      for (int row = 0; row < 9; ++row)
        for (int i = 0; i < static_cast<int>(threads); ++i) {
          const int warp = i / 32 * 32;
          const int source = source_lane(row, i - warp, std::min(32, static_cast<int>(threads) - warp));
          if (source >= 0)
            CHECK(result[static_cast<size_t>(row) * threads + static_cast<size_t>(i)] == 100 + warp + source);
        }
    }
  });
}

TEST_CASE("votes and reductions count the lanes that exist") {
  in_every_order([](Bench& bench) {
    constexpr unsigned kThreads = 40;
    std::vector<int> in(kThreads);
    for (unsigned i = 0; i < kThreads; ++i) in[i] = i < 32 ? static_cast<int>(i % 3) - 1 : static_cast<int>(i);
    auto* out = bench.empty<int>(5 * kThreads);
    votes(bench.stream(), kThreads, bench.put(in), out);
    const auto result = bench.get(out, 5 * kThreads);
    for (unsigned i = 0; i < kThreads; ++i) {
      const unsigned first = i / 32 * 32, end = std::min(kThreads, first + 32);
      unsigned ballot = 0;
      for (unsigned j = first; j < end; ++j) ballot |= (in[j] > 0 ? 1u : 0u) << (j - first);
      CHECK(static_cast<unsigned>(result[i]) == ballot);
      CHECK(result[kThreads + i] == 1);
      CHECK(result[2 * kThreads + i] == (first == 0 ? 0 : 1));
      CHECK(result[3 * kThreads + i] == std::accumulate(in.begin() + first, in.begin() + end, 0));
      CHECK(result[4 * kThreads + i] == *std::max_element(in.begin() + first, in.begin() + end));
    }
  });
}

TEST_CASE("lanes that parted vote by their own masks") {
  in_every_order([](Bench& bench) {
    const std::vector<int> in = numbers_from(-10, 32);
    auto* out = bench.empty<unsigned>(32);
    divergent_votes(bench.stream(), bench.put(in), out);
    const auto result = bench.get(out, 32);
    for (unsigned i = 0; i < 32; ++i)
      CHECK(result[i] == ((0xffffffffu << 11) & (i % 2 == 0 ? 0x55555555u : 0xaaaaaaaau)));
  });
}

TEST_CASE("integer atomics of all threads add up") {
  in_every_order([](Bench& bench) {
    int* out = bench.put(std::vector<int>{0, -1});
    atomics(bench.stream(), 1000, out);
    CHECK(bench.get(out, 2) == std::vector<int>{1000 * 1001 / 2, 999});
  });
}

TEST_CASE("block sums have the same bits in every order of the threads") {
  constexpr unsigned kBlocks = 3, kThreads = 1024;
  std::vector<float> in(kBlocks * kThreads);
  for (size_t i = 0; i < in.size(); ++i) in[i] = 1.0f / static_cast<float>(i + 1);
  std::vector<float> first;
  in_every_order([&](Bench& bench) {
    auto* out = bench.empty<float>(kBlocks);
    block_sums(bench.stream(), kBlocks, kThreads, bench.put(in), out);
    const auto sums = bench.get(out, kBlocks);
    if (first.empty()) first = sums;
    CHECK(sums == first);
    for (unsigned b = 0; b < kBlocks; ++b) {
      const double exact = std::accumulate(in.begin() + b * kThreads, in.begin() + (b + 1) * kThreads, 0.0);
      CHECK(sums[b] == doctest::Approx(exact).epsilon(1e-6));  // 10 roundings of fp32
    }
  });
}
