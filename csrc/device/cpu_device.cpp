#include "device/cpu_device.h"

#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/thread_pool.h"

namespace tercet {
namespace {

constexpr size_t kAlignment = 256;

class CpuEvent final : public Event {
 public:
  void synchronize() override {}
};

class CpuStream final : public Stream {
 public:
  explicit CpuStream(CpuDevice& device) : device_(device) {}
  Device& device() override { return device_; }
  void copy_to_device(void* target, const void* source, size_t bytes) override { copy(target, source, bytes); }
  void copy_to_host(void* target, const void* source, size_t bytes) override { copy(target, source, bytes); }
  void copy_on_device(void* target, const void* source, size_t bytes) override { copy(target, source, bytes); }
  void fill_zero(void* target, size_t bytes) override {
    if (bytes > 0) std::memset(target, 0, bytes);
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(); }
  void wait(Event&) override {}
  void synchronize() override {}

 private:
  static void copy(void* target, const void* source, size_t bytes) {
    if (bytes > 0) std::memmove(target, source, bytes);
  }

  CpuDevice& device_;
};

}  // namespace

std::string CpuDevice::description() const { return fmt::format("cpu ({} threads)", thread_pool().threads()); }

std::unique_ptr<Stream> CpuDevice::create_stream() { return std::make_unique<CpuStream>(*this); }

void* CpuDevice::allocate(size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, round_up(std::max<size_t>(bytes, 1), kAlignment));
  if (memory == nullptr)
    fail_run(fmt::format("not enough memory for {} bytes", bytes), "cpu",
             "use a smaller --micro-batch-tokens or --recompute");
  allocated_bytes_ += bytes;
  return memory;
}

void CpuDevice::release(void* memory, size_t bytes) {
  std::free(memory);
  allocated_bytes_ -= bytes;
}

}  // namespace tercet
