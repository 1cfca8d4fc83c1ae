// What holds for every op: devices and dtypes, sizes, threads, instruction sets.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "catalogue.h"
#include "kernels/op_list.h"
#include "kernels/simd.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr DType kFloatingTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

bool runs(const CatalogueEntry& entry, DType dtype) {
  Runner runner("cpu", dtype);
  try {
    entry.run(runner, 3);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Values run(const CatalogueEntry& entry, DType dtype, int64_t size) {
  Runner runner("cpu", dtype);
  return entry.run(runner, size);
}

}  // namespace

TEST_CASE("every op of the op list is in the tests' catalogue and the other way round") {
  std::vector<std::string> listed;
  for (const OpEntry& op : all_ops()) listed.emplace_back(op.name);
  CHECK(std::is_sorted(listed.begin(), listed.end()));
  std::vector<std::string> tested;
  for (const CatalogueEntry& entry : catalogue()) tested.emplace_back(entry.op);
  CHECK(listed == tested);
}

TEST_CASE("an op runs in the dtypes of the op list and refuses the others") {
  std::string table = fmt::format("{:26}{:>8}{:>8}{:>8}{:>8}\n", "op (cpu)", "fp64", "fp32", "bf16", "fp16");
  for (const CatalogueEntry& entry : catalogue()) {
    table += fmt::format("{:26}", entry.op);
    for (const DType dtype : kFloatingTypes) {
      const bool expected = find_op(entry.op).supports(DeviceKind::cpu, dtype);
      const std::string what = std::string(entry.op) + " " + dtype_name(dtype);
      INFO(what);
      CHECK(runs(entry, dtype) == expected);
      table += fmt::format("{:>8}", expected ? "yes" : "refused");
    }
    table += "\n";
  }
  MESSAGE(table);
}

TEST_CASE("fp32 is within its tolerance of fp64 at sizes around a vector and a tile") {
  for (const CatalogueEntry& entry : catalogue())
    for (const int64_t size : {0, 1, 2, 63, 65, 129}) {
      const std::string what = fmt::format("{} at size {} ({})", entry.op, size, entry.reason);
      check_close(run(entry, DType::f32, size), run(entry, DType::f64, size), entry.fp32_tolerance, what);
    }
}

TEST_CASE("results have the same bits with 1, 2 and 3 threads") {
  for (const CatalogueEntry& entry : catalogue())
    for (const DType dtype : {DType::f64, DType::f32}) {
      set_threads(1);
      const Values one = run(entry, dtype, 700);
      for (const int threads : {2, 3}) {
        set_threads(threads);
        check_equal(run(entry, dtype, 700), one, fmt::format("{} with {} threads", entry.op, threads));
      }
    }
  set_threads(available_cores());
}

TEST_CASE("every instruction set gives the same results within rounding") {
  const std::string chosen = simd_ops().isa;
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    if (!select_simd_ops(isa)) {
      MESSAGE("this machine does not run " << isa);
      continue;
    }
    CHECK(simd_ops().isa == std::string(isa));
    for (const CatalogueEntry& entry : catalogue())
      for (const DType dtype : {DType::f64, DType::f32}) {
        const Values here = run(entry, dtype, 129);
        REQUIRE(select_simd_ops("baseline"));
        // fp64 sums of a few hundred terms differ by their order alone.
        const double tolerance = dtype == DType::f64 ? 1e-13 : std::max(entry.fp32_tolerance, 1e-6);
        check_close(here, run(entry, dtype, 129), tolerance, fmt::format("{} on {}", entry.op, isa));
        REQUIRE(select_simd_ops(isa));
      }
  }
  REQUIRE(select_simd_ops(chosen.c_str()));
}
