// The queues of streams. Work runs when somebody waits for it and not before; which queue goes next, of those that
// events allow, is the order's choice: fifo runs other queues only when the awaited one needs them, lifo runs the
// others first, random draws.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tercet::emu {

class WorkQueue;

// All work that was in `queue` when the mark was made.
struct Mark {
  std::shared_ptr<WorkQueue> queue;
  uint64_t position = 0;

  bool reached() const;
};

// A piece of work; what has no function waits for a mark.
struct Work {
  std::function<void()> run;
  Mark wait_for;
};

class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  void push(Work work);
  Mark mark();

 private:
  friend class WorkScheduler;
  friend struct Mark;

  std::deque<Work> waiting_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
};

class WorkScheduler {
 public:
  // The process's scheduler.
  static WorkScheduler& instance();

  std::shared_ptr<WorkQueue> create_queue();
  // Runs work until the mark is reached. When work throws, all queued work is dropped and the error is thrown on.
  void run_until(const Mark& mark);

 private:
  std::vector<std::shared_ptr<WorkQueue>> queues();
  std::shared_ptr<WorkQueue> choose(const Mark& mark);
  void run_front(WorkQueue& queue);
  void drop_all();

  std::vector<std::weak_ptr<WorkQueue>> queues_;
  uint64_t drawn_ = 0;
};

}  // namespace tercet::emu
