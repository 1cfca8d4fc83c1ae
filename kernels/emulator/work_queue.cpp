#include "kernels/emulator/work_queue.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/emulator/device_memory.h"
#include "kernels/emulator/fault_handler.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/settings.h"

namespace tercet::emu {
namespace {

bool runnable(const Work& work) { return work.run || work.wait_for.reached(); }

}  // namespace

bool Mark::reached() const { return queue == nullptr || queue->done_ >= position; }

void WorkQueue::push(Work work) {
  const std::lock_guard lock(execution_lock());
  waiting_.push_back(std::move(work));
  ++pushed_;
}

Mark WorkQueue::mark() {
  const std::lock_guard lock(execution_lock());
  return {shared_from_this(), pushed_};
}

WorkScheduler& WorkScheduler::instance() {
  static WorkScheduler& scheduler = *new WorkScheduler;  // outlives every stream
  return scheduler;
}

std::shared_ptr<WorkQueue> WorkScheduler::create_queue() {
  const std::lock_guard lock(execution_lock());
  std::erase_if(queues_, [](const auto& queue) { return queue.expired(); });
  auto queue = std::make_shared<WorkQueue>();
  queues_.push_back(queue);
  return queue;
}

std::vector<std::shared_ptr<WorkQueue>> WorkScheduler::queues() {
  std::vector<std::shared_ptr<WorkQueue>> alive;
  for (const auto& weak : queues_)
    if (auto queue = weak.lock()) alive.push_back(std::move(queue));
  return alive;
}

std::shared_ptr<WorkQueue> WorkScheduler::choose(const Mark& mark) {
  if (settings().order == Order::fifo) {
    std::shared_ptr<WorkQueue> queue = mark.queue;
    while (!runnable(queue->waiting_.front())) queue = queue->waiting_.front().wait_for.queue;
    return queue;
  }
  auto candidates = queues();
  std::erase_if(candidates,
                [](const auto& queue) { return queue->waiting_.empty() || !runnable(queue->waiting_.front()); });
  TERCET_REQUIRE(!candidates.empty(), "streams wait for each other");
  if (settings().order == Order::random) {
    const RandomStream random(settings().seed, RandomPurpose::shuffle);
    return candidates[random.below(candidates.size(), drawn_++)];
  }
  const auto other =
      std::find_if(candidates.rbegin(), candidates.rend(), [&](const auto& queue) { return queue != mark.queue; });
  return other == candidates.rend() ? mark.queue : *other;
}

void WorkScheduler::run_front(WorkQueue& queue) {
  const Work work = std::move(queue.waiting_.front());
  queue.waiting_.pop_front();
  if (work.run) work.run();
  ++queue.done_;
}

void WorkScheduler::drop_all() {
  for (const auto& queue : queues()) {
    queue->waiting_.clear();
    queue->done_ = queue->pushed_;
  }
}

void WorkScheduler::run_until(const Mark& mark) {
  const std::lock_guard lock(execution_lock());
  if (mark.reached()) return;
  const KernelFaultScope faults;
  const DeviceMemory::Access access(DeviceMemory::instance());
  try {
    while (!mark.reached()) run_front(*choose(mark));
  } catch (...) {
    drop_all();
    throw;
  }
}

}  // namespace tercet::emu
