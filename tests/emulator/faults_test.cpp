// Wrong kernels become errors that name kernel, block, thread and line, thrown by synchronize.
#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct FaultBench : Bench {
  int* out = put(std::vector<int>(64, 1));
  const float* in = put(std::vector<float>(64, 1.0f));
};

}  // namespace

TEST_CASE("a deadlock is reported with the place where each group of threads waits") {
  FaultBench fault;
  lone_lane(fault.stream(), fault.out);
  const std::string message = fault.failure();
  check_contains(message, "kernel lone_lane_kernel, block (0, 0, 0)");
  check_contains(message, "deadlock");
  check_contains(message, "63 (thread 0 first) wait for __syncthreads at tests/emulator/faults.cu:");
  check_contains(message, "1 (thread 40 first) wait for __syncwarp at tests/emulator/faults.cu:");
}

TEST_CASE("a lane that misses a shuffle of its warp is a deadlock") {
  FaultBench fault;
  shuffle_missing_lane(fault.stream(), fault.out);
  const std::string message = fault.failure();
  check_contains(message, "31 (thread 0 first) wait for __shfl_xor_sync at tests/emulator/faults.cu:");
  check_contains(message, "1 (thread 7 first) wait for __syncthreads");
}

TEST_CASE("threads that meet at different barriers are reported with both places") {
  FaultBench fault;
  different_barriers(fault.stream(), fault.out);
  const std::string message = fault.failure();
  check_contains(message, "meet at different barriers: thread 0 waits at tests/emulator/faults.cu:");
  check_contains(message, "thread 32, at tests/emulator/faults.cu:");
}

TEST_CASE("lanes that meet at different operations are reported with both places") {
  FaultBench fault;
  different_collectives(fault.stream(), fault.out);
  const std::string message = fault.failure();
  check_contains(message, "__all_sync with mask 0xffffffff and, at tests/emulator/faults.cu:");
  check_contains(message, "__any_sync with mask 0xffffffff");
}

TEST_CASE("a lane outside of the mask that it gives is reported") {
  FaultBench fault;
  lane_outside_its_mask(fault.stream(), fault.out);
  check_contains(fault.failure(), "lane 16 is not in its own mask 0x0000ffff");
}

TEST_CASE("a copy that nobody waited for is reported") {
  FaultBench fault;
  emu::settings().copy = emu::CopyLanding::late;
  copy_never_waited_for(fault.stream(), fault.in);
  check_contains(fault.failure(), "ended with 1 asynchronous copies in flight");
}

TEST_CASE("misaligned asynchronous copies are reported") {
  FaultBench fault;
  misaligned_copy(fault.stream(), fault.in);
  check_contains(fault.failure(), "not a multiple of 16");
}

TEST_CASE("a 16-byte load from another address than a multiple of 16 is reported") {
  FaultBench fault;
  misaligned_pack(fault.stream(), fault.in, reinterpret_cast<float*>(fault.out));
  const std::string message = fault.failure();
  check_contains(message, "16 bytes are accessed at an address that is not a multiple of 16");
  check_contains(message, "called at tests/emulator/faults.cu:");
}

TEST_CASE("dynamic shared memory that was not asked for is reported") {
  FaultBench fault;
  no_dynamic_shared(fault.stream(), fault.out);
  check_contains(fault.failure(), "without dynamic shared memory");
}

TEST_CASE("an exception in a kernel becomes its failure") {
  FaultBench fault;
  throwing_kernel(fault.stream());
  const std::string message = fault.failure();
  check_contains(message, "thread 2 is not welcome");
  check_contains(message, "kernel throwing_kernel, block (0, 0, 0), thread 2");
}

TEST_CASE("after a failure the work behind it is dropped and the device goes on") {
  FaultBench fault;
  lone_lane(fault.stream(), fault.out);
  add_one(fault.stream(), 64, fault.out);
  CHECK(fault.failure() != "");
  CHECK(fault.get(fault.out, 1)[0] == 1);
  add_one(fault.stream(), 64, fault.out);
  CHECK(fault.get(fault.out, 1)[0] == 2);
}

#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("an access past device memory names the allocation, kernel, thread and line") {
  FaultBench fault;
  device_read_past_end(fault.stream(), fault.out, 64 + 256, fault.out);
  const std::string message = fault.failure();
  check_contains(message, "access outside of device memory: byte 1280 of an allocation of 256 bytes");
  check_contains(message, "kernel device_read_kernel, block (0, 0, 0), thread 3, at tests/emulator/faults.cu:");
}

TEST_CASE("an access to device memory that was released is reported") {
  FaultBench fault;
  int* released = nullptr;
  {
    const Buffer buffer(fault.device(), 1 << 20);
    released = static_cast<int*>(buffer.data());
  }
  device_read_past_end(fault.stream(), released, 0, fault.out);
  check_contains(fault.failure(), "memory that is not allocated");
}

TEST_CASE("an access far past dynamic shared memory is reported") {
  FaultBench fault;
  dynamic_shared_past_end(fault.stream(), 32, fault.out);
  check_contains(fault.failure(), "access outside of device memory");
}

TEST_CASE("a thread that overflows its stack is reported") {
  FaultBench fault;
  endless_recursion(fault.stream(), fault.out);
  check_contains(fault.failure(), "bytes of stack");
}
#endif
