#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "device/cpu_device.h"
#include "device/memory_plan.h"

namespace tercet {
namespace {

bool bytes_overlap(const MemoryPlan& plan, const Slot& a, const Slot& b) {
  const size_t a_begin = plan.offset(a.name);
  const size_t b_begin = plan.offset(b.name);
  return a.bytes > 0 && b.bytes > 0 && a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

}  // namespace

TEST_CASE("slots whose phases do not meet share bytes, others never overlap") {
  const RandomStream random(2, RandomPurpose::test);
  MemoryPlan plan;
  std::vector<Slot> slots;
  for (uint32_t i = 0; i < 60; ++i) {
    const auto first = static_cast<int>(random.below(6, i, 0));
    const auto last = first + static_cast<int>(random.below(static_cast<uint64_t>(6 - first), i, 1));
    slots.push_back({"slot" + std::to_string(i), MemoryClass::workspace, random.below(5000, i, 2),
                     static_cast<Phase>(first), static_cast<Phase>(last)});
  }
  plan.add(slots);
  plan.place();
  for (const Slot& a : slots)
    for (const Slot& b : slots)
      if (a.name < b.name && a.first <= b.last && b.first <= a.last) CHECK_FALSE(bytes_overlap(plan, a, b));
  CHECK(plan.total_bytes() < plan.class_bytes(MemoryClass::workspace));

  MemoryPlan two;
  two.add({{"kv", MemoryClass::kv_cache, 4096, Phase::rollout, Phase::rollout},
           {"activations", MemoryClass::activations, 8192, Phase::train_actor, Phase::train_actor}});
  two.place();
  CHECK(two.total_bytes() == 8192);
}

TEST_CASE("an arena hands out what was planned and nothing else") {
  CpuDevice device;
  MemoryPlan plan;
  plan.add({{"a", MemoryClass::parameters, 64, Phase::rollout, Phase::save},
            {"b", MemoryClass::gradients, 128, Phase::train_actor, Phase::train_actor}});
  CHECK_THROWS_WITH_AS(plan.add({{"a", MemoryClass::parameters, 1, Phase::rollout, Phase::save}}),
                       doctest::Contains("two memory slots are called a"), Error);
  {
    Arena arena(device, plan);
    CHECK(device.allocated_bytes() == arena.plan().total_bytes());
    const Tensor a = arena.take("a", DType::f32, {4, 4});
    CHECK(a.describe() == "fp32[4, 4]");
    CHECK_THROWS_WITH_AS(arena.take("a", DType::f32, {4, 4}), doctest::Contains("taken twice"), Error);
    CHECK_THROWS_WITH_AS(arena.take("b", DType::f32, {4}), doctest::Contains("was planned with 128 bytes"), Error);
    CHECK_THROWS_WITH_AS(arena.take("c", DType::f32, {4}), doctest::Contains("was not planned"), Error);
    CHECK_THROWS_WITH_AS(arena.require_all_taken(), doctest::Contains("b was planned and never taken"), Error);
    arena.take("b", DType::f64, {16});
    CHECK_NOTHROW(arena.require_all_taken());
    CHECK(arena.taken_bytes(MemoryClass::parameters) == plan.class_bytes(MemoryClass::parameters));
  }
  CHECK(device.allocated_bytes() == 0);
}

TEST_CASE("memory outside the one allocation is in the plan, and other memory of the device is noticed") {
  CpuDevice device;
  const Buffer scratch(device, 1000);
  MemoryPlan plan;
  plan.add({{"a", MemoryClass::workspace, 512}, {"b", MemoryClass::parameters, 256}});
  Arena without(device, plan);
  without.take("a", DType::f32, {128});
  without.take("b", DType::f32, {64});
  CHECK_THROWS_WITH_AS(without.require_all_taken(), doctest::Contains("1768 bytes are allocated on the device, 768"),
                       Error);

  CpuDevice other;
  const Buffer outside(other, 1000);
  plan.add_outside({{"streams/scratch", MemoryClass::workspace, 1000}});
  Arena arena(other, plan);
  CHECK(arena.plan().total_bytes() == 768);
  CHECK(arena.plan().outside_bytes() == 1000);
  CHECK(arena.plan().class_bytes(MemoryClass::workspace) == 1512);
  CHECK(arena.plan().table().find("allocated         1.7 KiB             1768 bytes") != std::string::npos);
  CHECK_THROWS_WITH_AS(arena.take("streams/scratch", DType::f32, {250}), doctest::Contains("was not planned"), Error);
  arena.take("a", DType::f32, {128});
  arena.take("b", DType::f32, {64});
  CHECK_NOTHROW(arena.require_all_taken());
  const Buffer stray(other, 1);
  CHECK_THROWS_WITH_AS(arena.require_all_taken(), doctest::Contains("1769 bytes are allocated"), Error);
}

TEST_CASE("the printed table names every class in use, the sum and the allocation") {
  MemoryPlan plan;
  plan.add({{"a", MemoryClass::parameters, 1 << 20, Phase::rollout, Phase::save}});
  plan.place();
  const std::string table = plan.table();
  CHECK(table.find("parameters") != std::string::npos);
  CHECK(table.find("1.0 MiB") != std::string::npos);
  CHECK(table.find("allocated") != std::string::npos);
  CHECK(table.find("kv cache") == std::string::npos);
  CHECK(format_bytes(1536) == "1.5 KiB");
}

TEST_CASE("views keep shape, pitch and dtype") {
  std::vector<float> memory(12);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const Tensor matrix(memory.data(), DType::f32, DeviceKind::cpu, {3, 4});
  const Tensor column = matrix.column_range(1, 2);
  CHECK(column.pitch == 4);
  CHECK_FALSE(column.contiguous());
  CHECK(column.row<float>(2)[1] == 10);
  CHECK(matrix.row_range(1, 2).row<float>()[0] == 4);
  CHECK(matrix.reshaped({2, 6}).row<float>(1)[0] == 6);
  CHECK(matrix.describe() == "fp32[3, 4]");
  CHECK_THROWS(column.reshaped({6}));
  CHECK_THROWS(matrix.row<double>());
  CHECK_THROWS(matrix.row_range(2, 2));
  CHECK_FALSE(Tensor().defined());
}

}  // namespace tercet
