#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/checked.h"

namespace tercet {
namespace {

thread_local bool inside_task = false;

// Waits a few tens of microseconds for a condition before a thread goes to sleep: the ops of a small model are shorter
// than a wake-up. Returns whether the condition came true.
template <class Condition>
bool spin_until(const Condition& condition) {
  constexpr int kSpins = 2000;
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

std::unique_ptr<ThreadPool>& pool_slot() {
  static std::unique_ptr<ThreadPool> pool;
  return pool;
}

}  // namespace

struct ThreadPool::Shared {
  std::mutex caller;  // held by the thread whose work the workers share
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> stop{false};
  std::atomic<int> active{0};
  int64_t tasks = 0;
  std::atomic<int64_t> next{0};
  const std::function<void(int64_t)>* body = nullptr;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void drain() {
    inside_task = true;
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      try {
        (*body)(task);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
    inside_task = false;
  }

  void work() {
    uint64_t seen = 0;
    while (true) {
      const auto called = [&] { return stop || generation != seen; };
      if (!spin_until(called)) {
        std::unique_lock lock(mutex);
        work_ready.wait(lock, called);
      }
      if (stop) return;
      seen = generation;
      drain();
      if (--active == 0) {
        const std::lock_guard lock(mutex);
        work_done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads), shared_(std::make_unique<Shared>()) {
  TERCET_REQUIRE(threads >= 1, "a thread pool of {} threads", threads);
  for (int i = 1; i < threads; ++i) shared_->workers.emplace_back([this] { shared_->work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->work_ready.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

void ThreadPool::run(int64_t tasks, const std::function<void(int64_t)>& body) {
  if (tasks <= 0) return;
  std::unique_lock caller(shared_->caller, std::defer_lock);
  if (threads_ == 1 || tasks == 1 || inside_task || !caller.try_lock()) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->tasks = tasks;
    shared_->next = 0;
    shared_->body = &body;
    shared_->error = nullptr;
    shared_->active = static_cast<int>(shared_->workers.size());
    ++shared_->generation;
  }
  shared_->work_ready.notify_all();
  shared_->drain();
  const auto done = [&] { return shared_->active == 0; };
  if (!spin_until(done)) {
    std::unique_lock lock(shared_->mutex);
    shared_->work_done.wait(lock, done);
  }
  if (shared_->error) std::rethrow_exception(shared_->error);
}

void ThreadPool::for_ranges(int64_t items, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  run(ceil_div(items, grain), [&](int64_t task) { body(task * grain, std::min(items, (task + 1) * grain)); });
}

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

ThreadPool& thread_pool() {
  auto& slot = pool_slot();
  if (!slot) slot = std::make_unique<ThreadPool>(available_cores());
  return *slot;
}

void set_threads(int threads) { pool_slot() = std::make_unique<ThreadPool>(threads); }

void* thread_scratch(int slot, size_t bytes) {
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    ~Block() { std::free(data); }
  };
  thread_local std::array<Block, 4> blocks;
  Block& block = blocks.at(static_cast<size_t>(slot));
  if (block.bytes < bytes) {
    std::free(block.data);
    block.bytes = round_up<size_t>(bytes, 4096);
    block.data = std::aligned_alloc(64, block.bytes);
    if (block.data == nullptr) fail_run("out of memory for scratch space", "", "use fewer threads");
  }
  return block.data;
}

}  // namespace tercet
