// What holds for every op: devices and dtypes, sizes, threads, instruction sets, orders of a GPU's threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/thread_pool.h"
#include "catalogue.h"
#include "kernels/op_list.h"
#include "kernels/simd.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr DType kFloatingTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

bool runs(const CatalogueEntry& entry, const std::string& device, DType dtype) {
  Runner runner(device, dtype);
  try {
    entry.run(runner, 3);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Values run(const CatalogueEntry& entry, DType dtype, int64_t size, const std::string& device = "cpu") {
  Runner runner(device, dtype);
  return joined(entry.run(runner, size));
}

bool is_present(const CatalogueEntry& entry, const std::string& device) {
  return device == "cpu" || Runner(device, DType::f32).device().implementation(entry.op) != nullptr;
}

// Calls body(entry, dtype) for the ops that the device has and the dtypes that it computes them in. An error in one of
// them (the emulator's finds are errors) does not hide the others.
template <class Body>
void for_each_gpu_op(const std::string& device, Body&& body) {
  for (const CatalogueEntry& entry : catalogue())
    for (const DType dtype : kFloatingTypes) {
      if (!is_present(entry, device) || !find_op(entry.op).supports(DeviceKind::cuda, dtype)) continue;
      try {
        body(entry, dtype);
      } catch (const Error& error) {
        const std::string what = fmt::format("{} {} on {}: {}", entry.op, dtype_name(dtype), device, error.what());
        FAIL_CHECK(what);
      }
    }
}

// Sets the order in which devices that are opened while it lives run a GPU's threads.
class EmulatorOrder {
 public:
  explicit EmulatorOrder(const char* order) {
    if (const char* before = std::getenv(kVariable); before != nullptr) before_ = before;
    setenv(kVariable, order, 1);
  }
  ~EmulatorOrder() {
    if (before_.empty())
      unsetenv(kVariable);
    else
      setenv(kVariable, before_.c_str(), 1);
  }

 private:
  static constexpr const char* kVariable = "TERCET_EMU_ORDER";
  std::string before_;
};

}  // namespace

TEST_CASE("every op of the op list is in the tests' catalogue and the other way round") {
  std::vector<std::string> listed;
  for (const OpEntry& op : all_ops()) listed.emplace_back(op.name);
  CHECK(std::is_sorted(listed.begin(), listed.end()));
  std::vector<std::string> tested;
  for (const CatalogueEntry& entry : catalogue()) tested.emplace_back(entry.op);
  CHECK(listed == tested);
}

TEST_CASE("every device has every op") {
  for (const std::string& device : present_devices())
    for (const CatalogueEntry& entry : catalogue()) {
      INFO(entry.op << " on " << device);
      CHECK(is_present(entry, device));
    }
}

TEST_CASE("every op is a range of its name in a profile") {
  for (const CatalogueEntry& entry : catalogue()) {
    Runner runner("cpu", DType::f32);
    ProfileRanges ranges;
    runner.record_profile(ranges);
    entry.run(runner, 3);
    INFO(entry.op);
    CHECK(ranges.contain(entry.op));
    CHECK(ranges.open.empty());
  }
}

TEST_CASE("an op runs in the dtypes of the op list and refuses the others, on every device") {
  for (const std::string& device : present_devices()) {
    std::string table =
        fmt::format("{:26}{:>8}{:>8}{:>8}{:>8}\n", "op (" + device + ")", "fp64", "fp32", "bf16", "fp16");
    for (const CatalogueEntry& entry : catalogue()) {
      table += fmt::format("{:26}", entry.op);
      for (const DType dtype : kFloatingTypes) {
        const DeviceKind kind = Runner(device, dtype).device().kind();
        const bool expected = is_present(entry, device) && find_op(entry.op).supports(kind, dtype);
        const std::string what = std::string(entry.op) + " " + dtype_name(dtype) + " on " + device;
        INFO(what);
        CHECK(runs(entry, device, dtype) == expected);
        table += fmt::format("{:>8}", expected ? "yes" : "refused");
      }
      table += "\n";
    }
    MESSAGE(table);
  }
}

TEST_CASE("fp32 is within its tolerance of fp64 at sizes around a vector and a tile") {
  for (const CatalogueEntry& entry : catalogue())
    for (const int64_t size : {0, 1, 2, 63, 65, 129}) {
      const std::string what = fmt::format("{} at size {} ({})", entry.op, size, entry.reason);
      check_close(run(entry, DType::f32, size), run(entry, DType::f64, size), entry.fp32_tolerance, what);
    }
}

TEST_CASE("a GPU's results are those of fp64 on the same inputs at sizes around a warp and a tile") {
  for (const std::string& device : present_gpu_devices()) {
    std::string table = fmt::format("{:26}{:>10}{:>10}{:>10}\n", "norm of error, " + device, "fp32", "bf16", "fp16");
    std::string last;
    for_each_gpu_op(device, [&](const CatalogueEntry& entry, DType dtype) {
      double worst = 0;
      for (const int64_t size : {0, 1, 63, 65, 129}) {
        Runner runner(device, dtype);
        Runner oracle = Runner::oracle(dtype);
        const Outputs actual = entry.run(runner, size);
        const Outputs expected = entry.run(oracle, size);
        REQUIRE(actual.size() >= expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          const std::string what = fmt::format("output {} of {} {} at size {}", i, entry.op, dtype_name(dtype), size);
          check_close(actual[i], expected[i], Tolerance::relative_norm(norm_tolerance(dtype)), what);
          worst = std::max(worst, norm_error(actual[i], expected[i]));
        }
      }
      table += last == entry.op ? "" : fmt::format("{}{:26}", last.empty() ? "" : "\n", entry.op);
      table += fmt::format("{:>10.1e}", worst);
      last = entry.op;
    });
    MESSAGE(table);
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

TEST_CASE("a GPU's results have the same bits every time, and in every order of its threads") {
  for (const std::string& device : present_gpu_devices())
    for_each_gpu_op(device, [&](const CatalogueEntry& entry, DType dtype) {
      const Values first = run(entry, dtype, 65, device);
      for (const char* order : {"lifo", "random"}) {
        const EmulatorOrder changed(order);
        check_equal(run(entry, dtype, 65, device), first, fmt::format("{} {}", entry.op, dtype_name(dtype)));
      }
    });
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
