// Asynchronous copies: right kernels give the same under early and late landing, wrong ones are seen when they land
// late.
#include <cmath>
#include <numeric>

#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr int kTiles = 5;
constexpr size_t kFloats = kTiles * 128;

std::vector<float> source() {
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

using Pipeline = void (*)(Stream&, int, const float*, float*);

bool copies_rightly(Bench& bench, Pipeline pipeline) {
  auto* out = bench.empty<float>(kFloats);
  pipeline(bench.stream(), kTiles, bench.put(source()), out);
  return bench.get(out, kFloats) == source();
}

}  // namespace

TEST_CASE("a double-buffered copy is right in every order and with copies that land early or late") {
  in_every_order([](Bench& bench) { CHECK(copies_rightly(bench, pipelined_copy)); });
}

TEST_CASE("copies that are not valid fill with zeros") {
  in_every_order([](Bench& bench) {
    auto* out = bench.empty<float>(128);
    zero_filled_copy(bench.stream(), 64, bench.put(source()), out);
    const auto result = bench.get(out, 128);
    for (size_t i = 0; i < 128; ++i) CHECK(result[i] == (i < 64 ? static_cast<float>(i + 1) : 0.0f));
  });
}

#if !defined(TERCET_EMU_RACE)
TEST_CASE("waiting for one group too few gives wrong data when copies land late, and passes when they land early") {
  for (const emu::Order order : {emu::Order::fifo, emu::Order::lifo, emu::Order::random}) {
    Bench bench;
    emu::settings() = {.order = order, .copy = emu::CopyLanding::late};
    CHECK_FALSE(copies_rightly(bench, pipelined_copy_waits_too_little));
    emu::settings().copy = emu::CopyLanding::early;
    CHECK(copies_rightly(bench, pipelined_copy_waits_too_little));
  }
}

TEST_CASE("a missing barrier after the wait gives wrong data") {
  for (const emu::Order order : {emu::Order::fifo, emu::Order::lifo, emu::Order::random}) {
    Bench bench;
    emu::settings() = {.order = order, .copy = emu::CopyLanding::late};
    CHECK_FALSE(copies_rightly(bench, pipelined_copy_without_barrier));
  }
}
#endif
