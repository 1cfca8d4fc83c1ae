// The memory of the emulated device. The host cannot touch it but while device work runs; an inaccessible page follows
// each allocation; new memory is filled with 0xFF (NaNs).
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tercet::emu {

class DeviceMemory {
 public:
  static constexpr size_t kAlignment = 256;

  // The process's device memory.
  static DeviceMemory& instance();

  // Throws Error(Fault::run) when there is not enough.
  void* allocate(size_t bytes);
  void release(void* memory);

  // Throws Error(Fault::run) unless the bytes lie in one allocation. `what` is for the message.
  void require(const void* address, size_t bytes, const std::string& what);
  // Whether the address lies in the range from which device memory comes.
  bool owns(const void* address) const;
  // "byte 512 of an allocation of 512 bytes", "not allocated".
  std::string describe(const void* address);

  // While one of these lives device memory can be read and written.
  class Access {
   public:
    explicit Access(DeviceMemory& memory);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceMemory& memory_;
  };

 private:
  struct Allocation {
    std::byte* pages;
    size_t page_bytes;  // without the guard
    size_t bytes;
  };

  DeviceMemory();
  std::byte* take_range(size_t bytes);
  void protect(const Allocation& allocation, int protection);
  void open();
  void close();

  std::recursive_mutex mutex_;
  std::byte* arena_ = nullptr;
  size_t arena_used_ = 0;
  std::map<std::byte*, Allocation> allocations_;   // by address
  std::multimap<size_t, std::byte*> free_ranges_;  // used again when the arena is spent
  int open_ = 0;
};

}  // namespace tercet::emu
