// Blocks: barriers, shared memory, orders, limits.
#include <algorithm>
#include <numeric>

#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

TEST_CASE("threads that have ended count as arrived at a barrier") {
  in_every_order([](Bench& bench) {
    for (const int alive : {1, 31, 33, 64, 70}) {
      std::vector<int> in(70);
      std::iota(in.begin(), in.end(), 5);
      int* out = bench.put(std::vector<int>(70, -1));
      early_exit(bench.stream(), 70, alive, bench.put(in), out);
      const auto result = bench.get(out, 70);
      for (int i = 0; i < 70; ++i)
        CHECK(result[static_cast<size_t>(i)] == (i < alive ? in[static_cast<size_t>(alive - 1 - i)] : -1));
    }
  });
}

TEST_CASE("every block finds all its shared memory poisoned, and new device memory is poisoned") {
  in_every_order([](Bench& bench) {
    auto* out = bench.empty<uint32_t>(5);
    CHECK(bench.get(out, 5) == std::vector<uint32_t>(5, 0xffffffffu));
    fresh_shared_memory(bench.stream(), out);
    CHECK(bench.get(out, 4) == std::vector<uint32_t>(4, 0xffffffffu));
  });
}

TEST_CASE("blocks and threads run first to last, last to first, or shuffled by a seed") {
  const auto order_of = [](const emu::Settings& settings, auto kernel) {
    Bench bench;
    emu::settings() = settings;
    int* order = bench.empty<int>(64);
    kernel(bench.stream(), 64, bench.put(std::vector<int>{0}), order);
    return bench.get(order, 64);
  };
  for (const auto kernel : {block_order, thread_order}) {
    std::vector<int> ascending(64);
    std::iota(ascending.begin(), ascending.end(), 0);
    const std::vector<int> descending(ascending.rbegin(), ascending.rend());
    using emu::Order;
    if (kernel == block_order) {
      CHECK(order_of({.order = Order::fifo}, kernel) == ascending);
      CHECK(order_of({.order = Order::lifo}, kernel) == descending);
    } else {
      CHECK(order_of({.order = Order::fifo}, kernel) != order_of({.order = Order::lifo}, kernel));
    }
    auto shuffled = order_of({.order = Order::random, .seed = 1}, kernel);
    CHECK(shuffled != ascending);
    CHECK(shuffled != order_of({.order = Order::random, .seed = 2}, kernel));
    std::sort(shuffled.begin(), shuffled.end());
    CHECK(shuffled == ascending);
  }
}

TEST_CASE("a launch that no GPU would accept is refused") {
  Bench bench;
  CHECK_THROWS_WITH_AS(empty(bench.stream(), 1, 1025), doctest::Contains("1025 threads"), Error);
  CHECK_THROWS_WITH_AS(empty(bench.stream(), 1, 0), doctest::Contains("0 threads"), Error);
  CHECK_THROWS_WITH_AS(empty(bench.stream(), 1, 1, 227 * 1024 + 1), doctest::Contains("232449 bytes"), Error);
  CHECK_NOTHROW(empty(bench.stream(), 1, 1024, 227 * 1024));
  empty(bench.stream(), 0, 32);
  CHECK(bench.failure() == "");
}

TEST_CASE("bank conflicts of matrix loads are counted") {
  Bench bench;
  const auto conflicts = [&](int pitch) {
    const uint64_t before = emu::statistics().bank_conflicts;
    load_with_pitch(bench.stream(), pitch);
    bench.stream().synchronize();
    return emu::statistics().bank_conflicts - before;
  };
  CHECK(conflicts(64) == 4 * 7);  // 128 bytes: the 8 rows of a matrix lie in one bank
  CHECK(conflicts(72) == 0);      // 9 chunks of 16 bytes: odd, so 8 rows lie in 8 banks
}
