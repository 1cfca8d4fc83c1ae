// The one pool of worker threads. Work is cut by a fixed size, never by the number of threads, so that results do not
// depend on how many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tercet {

// Runs ranges of work on a fixed set of threads, the caller among them.
class ThreadPool {
 public:
  // `threads` >= 1 counts the calling thread; a pool of one runs everything in the caller.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(i) for every i in [0, tasks), in any order, and returns when all are done. An exception of a task is
  // rethrown after the others have ended. A call from inside a task, or from a second thread meanwhile, runs
  // serially in its caller.
  void run(int64_t tasks, const std::function<void(int64_t)>& body);

  // Calls body(begin, end) on consecutive ranges of at most `grain` items that cover [0, items).
  void for_ranges(int64_t items, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Shared;
  int threads_;
  std::unique_ptr<Shared> shared_;
};

// Cores this process may run on (its affinity mask).
int available_cores();

// The process's pool. Created with available_cores() threads on first use; set_threads replaces it and must not be
// called while work is running.
ThreadPool& thread_pool();
void set_threads(int threads);

// At least `bytes` of scratch memory of the calling thread, 64-byte aligned, valid until its next call with the same
// `slot` (0..3). Contents are unspecified. For blocks of a fixed size only: it is not part of the memory plan.
void* thread_scratch(int slot, size_t bytes);

}  // namespace tercet
