#include "kernels/emulator/emu_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kernels/emulator/device_memory.h"
#include "kernels/emulator/emu_device.h"
#include "kernels/emulator/gpu_emulator.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/launch_log.h"
#include "kernels/emulator/product.h"
#include "kernels/emulator/sanitizer.h"

namespace tercet::emu {
namespace {

class EmuEvent final : public Event {
 public:
  explicit EmuEvent(Mark mark) : mark_(std::move(mark)) {}
  void synchronize() override { WorkScheduler::instance().run_until(mark_); }
  const Mark& mark() const { return mark_; }

 private:
  Mark mark_;
};

class EmuGraph final : public Graph {
 public:
  explicit EmuGraph(std::vector<Work> work) : work_(std::move(work)) {}
  const std::vector<Work>& work() const { return work_; }

 private:
  std::vector<Work> work_;
};

void require_device(const void* address, size_t bytes, const char* what) {
  DeviceMemory::instance().require(address, bytes, what);
}

void require_host(const void* address, size_t bytes, const char* what) {
  if (bytes > 0 && DeviceMemory::instance().owns(address))
    fail_run(fmt::format("{} is memory of the device ({}); host memory is expected", what,
                         DeviceMemory::instance().describe(address)),
             "emu");
}

}  // namespace

EmuStream::EmuStream(EmuDevice& device) : device_(device), queue_(WorkScheduler::instance().create_queue()) {
  device_.stream_begins();
}

EmuStream::~EmuStream() {
  device_.stream_ends();
  try {
    WorkScheduler::instance().run_until(queue_->mark());
  } catch (const Error& error) {
    log::warn("work of a stream that nobody waited for failed: {}", error.what());
  }
  for (void* workspace : workspaces_) DeviceMemory::instance().release(workspace);
}

Device& EmuStream::device() { return device_; }

void EmuStream::push(std::function<void()> run) {
  Work work{std::move(run), {}};
  if (capturing_)
    captured_.push_back(std::move(work));
  else
    queue_->push(std::move(work));
}

void EmuStream::require_not_capturing(const char* what) const {
  if (capturing_) fail_run(fmt::format("{} while the stream is being captured", what), "emu");
}

void EmuStream::copy_to_device(void* target, const void* host_source, size_t bytes) {
  require_device(target, bytes, "the target of a copy");
  require_host(host_source, bytes, "the source of a copy to the device");
  if (bytes > 0) push([=] { std::memcpy(target, host_source, bytes); });
}

void EmuStream::copy_to_host(void* host_target, const void* source, size_t bytes) {
  require_device(source, bytes, "the source of a copy");
  require_host(host_target, bytes, "the target of a copy to the host");
  if (bytes > 0) push([=] { std::memcpy(host_target, source, bytes); });
}

void EmuStream::copy_on_device(void* target, const void* source, size_t bytes) {
  require_device(target, bytes, "the target of a copy");
  require_device(source, bytes, "the source of a copy");
  if (bytes > 0) push([=] { std::memmove(target, source, bytes); });
}

void EmuStream::fill_zero(void* target, size_t bytes) {
  require_device(target, bytes, "a fill");
  if (bytes > 0) push([=] { std::memset(target, 0, bytes); });
}

std::unique_ptr<Event> EmuStream::record() {
  require_not_capturing("an event is recorded");
  return std::make_unique<EmuEvent>(queue_->mark());
}

void EmuStream::wait(Event& event) {
  const Mark& mark = static_cast<EmuEvent&>(event).mark();
  if (mark.queue == queue_) return;
  require_not_capturing("an event of another stream is waited for");
  queue_->push({nullptr, mark});
}

void EmuStream::synchronize() {
  require_not_capturing("the host waits for a stream");
  WorkScheduler::instance().run_until(queue_->mark());
}

// Small at first: the host's access to memory is switched by the page. Queued work and graphs keep what they have.
void EmuStream::grow_workspace(size_t bytes) {
  constexpr size_t kLeast = size_t{64} << 10;
  workspace_bytes_ = std::min(std::bit_ceil(std::max(bytes + 1, kLeast)), kWorkspaceBytes);
  workspaces_.push_back(DeviceMemory::instance().allocate(workspace_bytes_));
}

void* EmuStream::workspace(size_t bytes) {
  if (bytes > kWorkspaceBytes)
    fail_run(fmt::format("an op asks for {} bytes of scratch memory; a stream has {}", bytes, kWorkspaceBytes), "emu");
  if (workspaces_.empty() || bytes > workspace_bytes_) grow_workspace(bytes);
  push([workspace = workspaces_.back(), bytes, capacity = workspace_bytes_] {
    unpoison_region(workspace, bytes);
    std::memset(workspace, 0xFF, bytes);
    poison_region(static_cast<std::byte*>(workspace) + bytes, capacity - bytes);
  });
  return workspaces_.back();
}

void EmuStream::product(const Product& product) {
  require_emulated_product(product);
  push([product] { compute_product(product); });
}

void EmuStream::begin_capture() {
  require_not_capturing("a capture is begun");
  capturing_ = true;
}

std::unique_ptr<Graph> EmuStream::end_capture() {
  TERCET_REQUIRE(capturing_, "a capture ends that was not begun");
  capturing_ = false;
  return std::make_unique<EmuGraph>(std::exchange(captured_, {}));
}

void EmuStream::launch(Graph& graph) {
  for (const Work& work : static_cast<EmuGraph&>(graph).work()) push(work.run);
}

void EmuStream::queue_kernel(const char* name, const void* kernel, const LaunchShape& shape,
                             std::function<void()> body) {
  require_launchable(name, shape);
  push([name = std::string(name), kernel, shape, body = std::move(body)] {
    run_grid(name, shape, body);
    count_launch(kernel);
  });
}

void queue_kernel(Stream& stream, const char* name, const void* kernel, const LaunchShape& shape,
                  std::function<void()> body) {
  static_cast<EmuStream&>(stream).queue_kernel(name, kernel, shape, std::move(body));
}

}  // namespace tercet::emu
