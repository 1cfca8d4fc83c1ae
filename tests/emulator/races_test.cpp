// The race checker: every unordered pair of accesses is found in every order, and ordered ones are not.
#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

#if defined(TERCET_EMU_RACE)

namespace {

void check_race(const std::function<void(Bench&, int*)>& launch, const std::vector<std::string>& parts) {
  in_every_order([&](Bench& bench) {
    launch(bench, bench.put(std::vector<int>(4096, 0)));
    const std::string message = bench.failure();
    check_contains(message, "accesses that no barrier orders");
    for (const std::string& part : parts) check_contains(message, part);
  });
}

void check_no_race(const std::function<void(Bench&, int*)>& launch) {
  in_every_order([&](Bench& bench) {
    launch(bench, bench.put(std::vector<int>(4096, 0)));
    CHECK(bench.failure() == "");
  });
}

}  // namespace

TEST_CASE("a missing barrier between a write and a read of shared memory is found") {
  check_race([](Bench& bench, int* out) { neighbour_without_barrier(bench.stream(), 64, out); },
             {"shared memory", "kernel neighbour_kernel", "tests/emulator/races.cu:"});
  check_no_race([](Bench& bench, int* out) { neighbour_with_barrier(bench.stream(), 64, out); });
  check_race([](Bench& bench, int* out) { dynamic_without_barrier(bench.stream(), out); }, {"shared memory"});
}

TEST_CASE("__syncwarp orders the lanes that it names, a shuffle orders nothing") {
  check_no_race([](Bench& bench, int* out) { neighbour_in_warp(bench.stream(), out); });
  check_race([](Bench& bench, int* out) { neighbour_in_warp_by_shuffle(bench.stream(), out); }, {"shared memory"});
  check_race([](Bench& bench, int* out) { halves_of_warp(bench.stream(), out); }, {"shared memory"});
}

TEST_CASE("shared memory that is written again before all have read it is found") {
  check_race([](Bench& bench, int* out) { reuse_without_barrier(bench.stream(), out); }, {"shared memory"});
}

TEST_CASE("two blocks that write one address are found, and blocks that keep apart are not") {
  check_race([](Bench& bench, int* out) { two_blocks_one_address(bench.stream(), out); },
             {"write of device memory", "after the write by thread 0 of another block"});
  check_no_race([](Bench& bench, int* out) { blocks_with_own_addresses(bench.stream(), out); });
}

TEST_CASE("launches are ordered") {
  check_no_race([](Bench& bench, int* out) {
    add_one(bench.stream(), 500, out);
    twice(bench.stream(), 500, out);
  });
}

TEST_CASE("atomics do not race with each other but with plain accesses") {
  check_no_race([](Bench& bench, int* out) { atomics_of_blocks(bench.stream(), out); });
  check_race([](Bench& bench, int* out) { atomic_and_plain(bench.stream(), out); }, {"device memory"});
}

TEST_CASE("an asynchronous copy that is read before its wait, or by others before a barrier, is a race") {
  std::vector<float> in(5 * 128, 1.0f);
  for (const auto pipeline : {pipelined_copy_waits_too_little, pipelined_copy_without_barrier})
    for (const emu::Order order : {emu::Order::fifo, emu::Order::lifo, emu::Order::random}) {
      Bench bench;
      emu::settings() = {.order = order, .copy = emu::CopyLanding::late};
      pipeline(bench.stream(), 5, bench.put(in), bench.empty<float>(in.size()));
      check_contains(bench.failure(), "tests/emulator/copies.cu:");
    }
}

#endif
