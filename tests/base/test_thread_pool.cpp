#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "base/checked.h"
#include "base/thread_pool.h"

namespace tercet {

TEST_CASE("every task runs exactly once for any number of threads") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.run(tasks, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
      for (const auto& count : runs) CHECK(count == 1);
    }
  }
}

TEST_CASE("ranges cover all items without overlap") {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> seen(101);
  pool.for_ranges(101, 10, [&](int64_t begin, int64_t end) {
    CHECK(end - begin <= 10);
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  for (const auto& count : seen) CHECK(count == 1);
}

TEST_CASE("a nested call runs in its task and an exception reaches the caller") {
  ThreadPool pool(2);
  std::atomic<int> inner{0};
  pool.run(4, [&](int64_t) { pool.run(3, [&](int64_t) { ++inner; }); });
  CHECK(inner == 12);
  CHECK_THROWS_AS(pool.run(8,
                           [](int64_t task) {
                             if (task == 5) throw std::runtime_error("five");
                           }),
                  std::runtime_error);
  std::atomic<int> after{0};
  pool.run(8, [&](int64_t) { ++after; });
  CHECK(after == 8);
}

TEST_CASE("scratch memory is aligned, large enough and one per slot") {
  auto* a = static_cast<char*>(thread_scratch(0, 100));
  auto* b = static_cast<char*>(thread_scratch(1, 100));
  CHECK(a != b);
  CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
  CHECK(thread_scratch(0, 50) == a);
}

TEST_CASE("checked arithmetic throws where C++ would wrap") {
  CHECK(checked_mul<int64_t>(1 << 20, 1 << 20) == int64_t{1} << 40);
  CHECK_THROWS(checked_mul<int64_t>(int64_t{1} << 40, int64_t{1} << 40));
  CHECK_THROWS(checked_add<int32_t>(INT32_MAX, 1));
  CHECK_THROWS(narrow<int32_t>(int64_t{1} << 40));
  CHECK(round_up(10, 8) == 16);
  CHECK(ceil_div(0, 8) == 0);
}

}  // namespace tercet
