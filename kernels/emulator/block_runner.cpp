#include "kernels/emulator/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "base/error.h"
#include "kernels/emulator/race_checker.h"
#include "kernels/emulator/sanitizer.h"
#include "kernels/emulator/source_line.h"

namespace tercet::emu {
namespace {

constexpr const char* kWarpBarrier = "__syncwarp";
constexpr const char* kBlockBarrier = "__syncthreads";

bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

bool same_place(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && same_text(a.file_name(), b.file_name());
}

std::string describe_other_barrier(const Thread& other) {
  return fmt::format("threads of a block meet at different barriers: thread {} waits at {}", other.number,
                     source_line(other.site));
}

uint3 index_of(int number, const dim3& block) {
  const auto n = static_cast<unsigned>(number);
  return {n % block.x, n / block.x % block.y, n / block.x / block.y};
}

}  // namespace

const ThreadPlace* current_thread = nullptr;
LaunchPlace current_launch;

BlockRunner& block_runner() {
  static BlockRunner runner;
  return runner;
}

bool BlockRunner::run(const std::function<void()>& body, uint64_t block_number, Failure& failure) {
  const dim3 block = current_launch.block;
  body_ = &body;
  random_ = RandomStream(settings().seed, RandomPurpose::test, block_number);
  prepare(size_t{block.x} * block.y * block.z);
  switch_to(next_ready(), false);
  if (failure_.message.empty()) return true;
  failure = std::exchange(failure_, {});
  return false;
}

void BlockRunner::prepare(size_t threads) {
  while (stacks_.size() < threads) stacks_.emplace_back();
  threads_.resize(threads);
  warps_.resize((threads + kWarpLanes - 1) / kWarpLanes);
  for (Warp& warp : warps_) {
    warp.alive = 0;
    warp.meetings.clear();
  }
  ready_.clear();
  ready_head_ = 0;
  at_barrier_.clear();
  alive_ = static_cast<int>(threads);
  drawn_ = 0;
  for (int number = 0; number < alive_; ++number) {
    const auto i = static_cast<size_t>(number);
    Thread& thread = threads_[i];
    const int lane = number % kWarpLanes;
    static_cast<ThreadPlace&>(thread) = {index_of(number, current_launch.block), number, number / kWarpLanes, lane};
    unpoison_region(stacks_[i].bottom(), FiberStack::kBytes);
    thread.stack_pointer = stacks_[i].start(enter);
    thread.fake_stack = nullptr;
    thread.ended = false;
    thread.waits_for = nullptr;
    thread.copies.clear();
    thread.groups.clear();
    warps_[static_cast<size_t>(thread.warp)].alive |= 1u << lane;
    make_ready(number);
  }
  statistics().threads += threads;
}

void BlockRunner::enter() {
  BlockRunner& runner = block_runner();
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (runner.main_stack_bottom_ == nullptr) {
    runner.main_stack_bottom_ = bottom;
    runner.main_stack_bytes_ = bytes;
  }
#endif
  std::string failure;
  try {
    (*runner.body_)();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (!failure.empty()) runner.fail(std::move(failure), "");
  runner.end_thread();
}

int BlockRunner::next_ready() {
  const size_t count = ready_.size() - ready_head_;
  if (count == 0) return kNobody;
  if (settings().order == Order::lifo) {
    const int last = ready_.back();
    ready_.pop_back();
    return last;
  }
  if (settings().order == Order::random)
    std::swap(ready_[ready_head_], ready_[ready_head_ + random_.below(count, drawn_++)]);
  const int first = ready_[ready_head_++];
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  }
  return first;
}

void BlockRunner::switch_to(int next, [[maybe_unused]] bool ending) {
  const int self = running_;
  void** save = self == kNobody ? &main_stack_pointer_ : &threads_[static_cast<size_t>(self)].stack_pointer;
  void* resume = next == kNobody ? main_stack_pointer_ : threads_[static_cast<size_t>(next)].stack_pointer;
#if defined(__SANITIZE_ADDRESS__)
  void** fake = self == kNobody ? &main_fake_stack_ : &threads_[static_cast<size_t>(self)].fake_stack;
  const void* bottom = next == kNobody ? main_stack_bottom_ : stacks_[static_cast<size_t>(next)].bottom();
  const size_t bytes = next == kNobody ? main_stack_bytes_ : FiberStack::kBytes;
  if (self == kNobody) main_stack_bottom_ = nullptr;  // filled by the first thread: the caller may be another OS thread
  __sanitizer_start_switch_fiber(ending ? nullptr : fake, bottom, bytes);
#endif
  ++statistics().switches;
  running_ = next;
  current_thread = next == kNobody ? nullptr : &threads_[static_cast<size_t>(next)];
  tercet_emu_switch(save, resume);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(*fake, nullptr, nullptr);
#endif
}

void BlockRunner::yield(bool ending) {
  const int self = running_;
  const int next = next_ready();
  if (next == kNobody && alive_ > 0) {
    failure_.message = describe_deadlock();
    return switch_to(kNobody, false);
  }
  if (next != self) switch_to(next, ending);
}

void BlockRunner::wait(const char* what, Site site) {
  Thread& self = thread();
  self.waits_for = what;
  self.site = site;
  yield();
  self.waits_for = nullptr;
}

void BlockRunner::end_thread() {
  Thread& self = thread();
  if (!self.copies.empty())
    fail(fmt::format("the thread ended with {} asynchronous copies in flight", self.copies.size()),
         source_line(self.copies.front().site));
  self.ended = true;
  --alive_;
  warps_[static_cast<size_t>(self.warp)].alive &= ~(1u << self.lane);
  complete_without_ended(self.warp);
  if (!at_barrier_.empty() && static_cast<int>(at_barrier_.size()) == alive_) release_barrier();
  yield(true);
  std::terminate();
}

// The caller's frame is never left: nothing in it may own memory by now.
void BlockRunner::fail(std::string message, std::string where) {
  failure_.message = std::move(message);
  failure_.where = std::move(where);
  failure_.thread = running_;
  switch_to(kNobody, false);
  std::terminate();
}

std::string BlockRunner::describe_deadlock() const {
  std::map<std::string, std::pair<int, int>> places;  // number of threads, first of them
  int ended = 0;
  for (const Thread& thread : threads_) {
    if (thread.ended) ++ended;
    if (thread.ended || thread.waits_for == nullptr) continue;
    const std::string place = fmt::format("{} at {}", thread.waits_for, source_line(thread.site));
    ++places.try_emplace(place, 0, thread.number).first->second.first;
  }
  std::string message = fmt::format("deadlock; {} threads have ended", ended);
  for (const auto& [place, threads] : places)
    message += fmt::format("; {} (thread {} first) wait for {}", threads.first, threads.second, place);
  return message;
}

void BlockRunner::block_barrier(Site site) {
  if (!at_barrier_.empty()) {
    const Thread& first = threads_[static_cast<size_t>(at_barrier_.front())];
    if (!same_place(first.site, site)) fail(describe_other_barrier(first), source_line(site));
  }
  at_barrier_.push_back(running_);
  if (static_cast<int>(at_barrier_.size()) == alive_) release_barrier();
  wait(kBlockBarrier, site);
}

void BlockRunner::release_barrier() {
  ++statistics().barriers;
  if constexpr (race::kChecked) race::order_block();
  // Under lifo the last to arrive, who was the first in ready_, goes last again.
  if (settings().order == Order::lifo) std::reverse(at_barrier_.begin(), at_barrier_.end());
  for (const int waiting : at_barrier_) make_ready(waiting);
  at_barrier_.clear();
}

std::string BlockRunner::describe_other_meeting(const Meeting& other, const char* operation, uint32_t mask) {
  return fmt::format(
      "lanes of a warp meet at different operations: {} with mask {:#010x} and, at {}, {} with mask {:#010x}",
      operation, mask, source_line(other.site), other.operation, other.mask);
}

BlockRunner::Meeting& BlockRunner::meet(Warp& warp, const char* operation, uint32_t mask, Site site) {
  for (Meeting& other : warp.meetings) {
    if ((other.mask & mask & warp.alive) == 0) continue;
    const bool alike = same_text(other.operation, operation) && (other.mask & warp.alive) == (mask & warp.alive);
    if (alike && (operation == kWarpBarrier || same_place(other.site, site))) return other;
    fail(describe_other_meeting(other, operation, mask), source_line(site));
  }
  Meeting& meeting = warp.meetings.emplace_back();
  meeting.operation = operation;
  meeting.mask = mask;
  meeting.site = site;
  return meeting;
}

void BlockRunner::collective(const char* operation, uint32_t mask, void* record, Compute compute, Site site) {
  Thread& self = thread();
  Warp& warp = warps_[static_cast<size_t>(self.warp)];
  if ((mask >> self.lane & 1u) == 0)
    fail(fmt::format("{}: lane {} is not in its own mask {:#010x}", operation, self.lane, mask), source_line(site));
  Meeting& meeting = meet(warp, operation, mask, site);
  meeting.records[static_cast<size_t>(self.lane)] = record;
  meeting.arrived |= 1u << self.lane;
  meeting.compute = compute;
  if (meeting.arrived != (mask & warp.alive)) return wait(operation, site);
  complete(warp, static_cast<size_t>(&meeting - warp.meetings.data()), self.lane);
  if (settings().order == Order::fifo) return;
  make_ready(running_);
  yield();
}

// Computes for all lanes that arrived and makes them ready, but not `by_lane`, which runs.
void BlockRunner::complete(Warp& warp, size_t index, int by_lane) {
  Meeting& meeting = warp.meetings[index];
  if (meeting.compute != nullptr) meeting.compute(meeting.records.data(), meeting.arrived);
  ++statistics().collectives;
  const int warp_number = static_cast<int>(&warp - warps_.data());
  if constexpr (race::kChecked)
    if (meeting.operation == kWarpBarrier) race::order_warp(warp_number, meeting.arrived);
  const int first = warp_number * kWarpLanes;
  for (uint32_t rest = meeting.arrived; rest != 0; rest &= rest - 1)
    if (const int lane = std::countr_zero(rest); lane != by_lane) make_ready(first + lane);
  warp.meetings.erase(warp.meetings.begin() + static_cast<std::ptrdiff_t>(index));
}

// Operations that waited for nobody but a lane that has just ended.
void BlockRunner::complete_without_ended(int warp_number) {
  Warp& warp = warps_[static_cast<size_t>(warp_number)];
  for (size_t i = warp.meetings.size(); i-- > 0;)
    if (const Meeting& meeting = warp.meetings[i]; meeting.arrived == (meeting.mask & warp.alive))
      complete(warp, i, kNobody);
}

bool BlockRunner::overflows_stack(const void* address) const {
  return running_ != kNobody && stacks_[static_cast<size_t>(running_)].guards(address);
}

void* BlockRunner::abandon(Failure failure) {
  failure_ = std::move(failure);
  failure_.thread = running_;
  running_ = kNobody;
  current_thread = nullptr;
  return main_stack_pointer_;
}

// --- execution.h ---

void fail_thread(std::string message, Site site) { block_runner().fail(std::move(message), source_line(site)); }

void fail_misaligned(size_t bytes, const void* code) {
  block_runner().fail(fmt::format("{} bytes are accessed at an address that is not a multiple of {}", bytes, bytes),
                      source_line(reinterpret_cast<uintptr_t>(code) - 1));
}

void fail_misaligned(size_t bytes) { fail_misaligned(bytes, __builtin_return_address(0)); }

void block_barrier(Site site) { block_runner().block_barrier(site); }

void collective(const char* operation, uint32_t mask, void* record, Compute compute, Site site) {
  block_runner().collective(operation, mask, record, compute, site);
}

void warp_barrier(uint32_t mask, Site site) { block_runner().collective(kWarpBarrier, mask, nullptr, nullptr, site); }

}  // namespace tercet::emu
