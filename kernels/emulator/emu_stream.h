// A stream of the `emu` device: a queue that runs as late as it may (work_queue.h), scratch memory, captured graphs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/gpu_stream.h"
#include "kernels/emulator/work_queue.h"

namespace tercet::emu {

class EmuDevice;

class EmuStream final : public GpuStream {
 public:
  explicit EmuStream(EmuDevice& device);
  // Runs what is still queued.
  ~EmuStream() override;
  EmuStream(const EmuStream&) = delete;
  EmuStream& operator=(const EmuStream&) = delete;

  Device& device() override;
  // Host memory is read and written when the queue runs, not when the copy is queued.
  void copy_to_device(void* target, const void* host_source, size_t bytes) override;
  void copy_to_host(void* host_target, const void* source, size_t bytes) override;
  void copy_on_device(void* target, const void* source, size_t bytes) override;
  void fill_zero(void* target, size_t bytes) override;
  std::unique_ptr<Event> record() override;
  void wait(Event& event) override;
  void synchronize() override;

  // Filled with 0xFF before the work of the op that asks.
  void* workspace(size_t bytes) override;
  void product(const Product& product) override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(Graph& graph) override;

  void queue_kernel(const char* name, const void* kernel, const LaunchShape& shape, std::function<void()> body);

 private:
  void push(std::function<void()> run);
  void require_not_capturing(const char* what) const;
  void grow_workspace(size_t bytes);

  EmuDevice& device_;
  std::shared_ptr<WorkQueue> queue_;
  std::vector<void*> workspaces_;  // each larger than the one before; the last is in use
  size_t workspace_bytes_ = 0;
  bool capturing_ = false;
  std::vector<Work> captured_;
};

}  // namespace tercet::emu
