#include "kernels/emulator/race_checker.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "kernels/emulator/execution.h"
#include "kernels/emulator/source_line.h"

namespace tercet::emu::race {
namespace {

constexpr size_t kUnit = 2;  // bytes
constexpr int kLanes = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxReported = 8;

// One access. `epoch` counts barriers of the process from 1; 0 is no access. `clock` counts the warp barriers of the
// thread in its block.
struct Record {
  uint32_t epoch = 0;
  uint32_t code = 0;  // from image_base()
  uint16_t thread : 15 = 0;
  bool atomic : 1 = false;
  uint16_t clock = 0;
};

// What is remembered of a unit: its last writer, and two readers, of two warps if there are any.
struct Unit {
  Record write;
  Record read[2];
  uint32_t copy = 0;  // code of the asynchronous copy under way; 0: none
};

struct Region {
  uintptr_t begin, end;
  Memory memory;
  Unit* units;
};

struct Checker {
  std::vector<Region> regions;
  uint32_t epoch = 1;
  uint32_t launch_epoch = 1;
  uint32_t block_epoch = 1;
  size_t threads = 0;                                // of the block
  std::vector<std::pair<uintptr_t, size_t>> copies;  // under way: target, bytes
  // What each thread knows of the clocks of its warp.
  std::vector<std::array<uint16_t, kLanes>> clocks = std::vector<std::array<uint16_t, kLanes>>(kMaxThreads);
  std::vector<std::pair<uint32_t, uint32_t>> pairs;  // of code that raced in this launch
  std::vector<std::string> lines;
};

Checker& checker() {
  static Checker instance;
  return instance;
}

// Code addresses are kept as distances from here.
uintptr_t image_base() { return reinterpret_cast<uintptr_t>(&image_base) - (uintptr_t{1} << 31); }

const Region* region_of(const Checker& c, uintptr_t address) {
  for (const Region& region : c.regions)
    if (address >= region.begin && address < region.end) return &region;
  return nullptr;
}

// Whether the access `before` and one of `thread` now are in no order.
bool unordered(const Checker& c, const Record& before, int thread, Memory memory) {
  if (before.epoch == 0) return false;
  if (before.epoch < c.block_epoch) return memory == Memory::device && before.epoch >= c.launch_epoch;
  if (before.epoch != c.epoch || before.thread == thread) return false;
  if (before.thread / kLanes != thread / kLanes) return true;
  return c.clocks[static_cast<size_t>(thread)][before.thread % kLanes] < before.clock;
}

std::string describe_thread(const Checker& c, const Record& record) {
  return record.epoch < c.block_epoch ? fmt::format("thread {} of another block", record.thread)
                                      : fmt::format("thread {}", record.thread);
}

// Whether a message about this pair of places is still to be made.
bool is_new(Checker& c, uint32_t before, uint32_t now) {
  const std::pair pair(before, now);
  if (std::find(c.pairs.begin(), c.pairs.end(), pair) != c.pairs.end()) return false;
  c.pairs.push_back(pair);
  return c.lines.size() < kMaxReported;
}

std::string describe_access(const Record& now, bool writes, const Region& region, uintptr_t address) {
  const uint3 block = current_launch.block_index;
  return fmt::format("{} of {} memory, byte {}, by block ({}, {}, {}), thread {} at {}", writes ? "write" : "read",
                     region.memory == Memory::shared ? "shared" : "device", address - region.begin, block.x, block.y,
                     block.z, now.thread, source_line(image_base() + now.code));
}

void report_race(Checker& c, const Record& before, bool before_writes, const Record& now, bool now_writes,
                 const Region& region, uintptr_t address) {
  if (!is_new(c, before.code, now.code)) return;
  c.lines.push_back(fmt::format("{}, after the {} by {} at {}", describe_access(now, now_writes, region, address),
                                before_writes ? "write" : "read", describe_thread(c, before),
                                source_line(image_base() + before.code)));
}

void report_copy(Checker& c, uint32_t copy, const Record& now, bool writes, const Region& region, uintptr_t address) {
  if (!is_new(c, copy, now.code)) return;
  c.lines.push_back(fmt::format("{}, while the asynchronous copy of {} is under way",
                                describe_access(now, writes, region, address), source_line(image_base() + copy)));
}

// Keeps the reader where a later writer is most likely to miss it.
void remember_reader(const Checker& c, Unit& unit, const Record& now, Memory memory) {
  for (Record& reader : unit.read)
    if (!unordered(c, reader, now.thread, memory)) {
      reader = now;
      return;
    }
  if (unit.read[0].thread / kLanes == unit.read[1].thread / kLanes) unit.read[1] = now;
}

void touch_unit(Checker& c, const Region& region, uintptr_t address, const Record& now, Access access) {
  Unit& unit = region.units[(address - region.begin) / kUnit];
  const bool writes = access != Access::read;
  if (unit.copy != 0) report_copy(c, unit.copy, now, writes, region, address);
  const auto check = [&](const Record& before, bool before_writes) {
    if (!(now.atomic && before.atomic) && unordered(c, before, now.thread, region.memory))
      report_race(c, before, before_writes, now, writes, region, address);
  };
  check(unit.write, true);
  if (!writes) return remember_reader(c, unit, now, region.memory);
  for (const Record& reader : unit.read) check(reader, false);
  unit.write = now;
}

void mark_copy(const Checker& c, uintptr_t target, size_t bytes, uint32_t code) {
  const Region* region = region_of(c, target);
  if (region == nullptr) return;
  for (uintptr_t at = target; at < target + bytes; at += kUnit) region->units[(at - region->begin) / kUnit].copy = code;
}

}  // namespace

void watch(const void* begin, size_t bytes, Memory memory) {
  Checker& c = checker();
  const auto first = reinterpret_cast<uintptr_t>(begin);
  if (bytes == 0 || region_of(c, first) != nullptr) return;
  const size_t unit_bytes = (bytes / kUnit + 1) * sizeof(Unit);
  void* units = mmap(nullptr, unit_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (units == MAP_FAILED) fail_errno("no memory for the race checker", "emu");
  c.regions.push_back({first, first + bytes, memory, static_cast<Unit*>(units)});
}

void begin_launch() {
  Checker& c = checker();
  c.launch_epoch = ++c.epoch;
  c.pairs.clear();
  c.lines.clear();
}

void begin_block(int threads) {
  Checker& c = checker();
  for (const auto& [target, bytes] : c.copies) mark_copy(c, target, bytes, 0);  // of a kernel that failed
  c.copies.clear();
  c.threads = static_cast<size_t>(threads);
  order_block();
  c.block_epoch = c.epoch;
}

void order_block() {
  Checker& c = checker();
  ++c.epoch;
  for (size_t t = 0; t < c.threads; ++t) {
    c.clocks[t].fill(0);
    c.clocks[t][t % kLanes] = 1;
  }
}

void order_warp(int warp, uint32_t lanes) {
  Checker& c = checker();
  auto* clocks = &c.clocks[static_cast<size_t>(warp) * kLanes];
  std::array<uint16_t, kLanes> latest{};
  for (int lane = 0; lane < kLanes; ++lane)
    if ((lanes >> lane & 1u) != 0)
      for (size_t i = 0; i < kLanes; ++i) latest[i] = std::max(latest[i], clocks[lane][i]);
  for (size_t lane = 0; lane < kLanes; ++lane)
    if ((lanes >> lane & 1u) != 0) {
      clocks[lane] = latest;
      ++clocks[lane][lane];
    }
}

void touch(int thread, const void* address, size_t bytes, Access access, uintptr_t code) {
  Checker& c = checker();
  const auto first = reinterpret_cast<uintptr_t>(address);
  const Region* region = region_of(c, first);
  if (region == nullptr) return;
  const Record now{.epoch = c.epoch,
                   .code = static_cast<uint32_t>(code - image_base()),
                   .thread = static_cast<uint16_t>(thread & 0x7fff),
                   .atomic = access == Access::atomic,
                   .clock = c.clocks[static_cast<size_t>(thread)][static_cast<size_t>(thread % kLanes)]};
  const uintptr_t end = std::min(first + bytes, region->end);
  for (uintptr_t at = first & ~(kUnit - 1); at < end; at += kUnit) touch_unit(c, *region, at, now, access);
}

void begin_copy(int thread, const void* target, size_t bytes, uintptr_t code) {
  touch(thread, target, bytes, Access::write, code);
  Checker& c = checker();
  const auto address = reinterpret_cast<uintptr_t>(target);
  mark_copy(c, address, bytes, static_cast<uint32_t>(code - image_base()));
  c.copies.emplace_back(address, bytes);
}

void end_copy(const void* target, size_t bytes) {
  Checker& c = checker();
  const auto address = reinterpret_cast<uintptr_t>(target);
  mark_copy(c, address, bytes, 0);
  std::erase(c.copies, std::pair(address, bytes));
}

std::string report() {
  std::string text;
  for (const std::string& line : checker().lines) text += (text.empty() ? "" : "\n  ") + line;
  return text;
}

}  // namespace tercet::emu::race
