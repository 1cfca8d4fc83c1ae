// Faults that end the process, one per run: fatal_faults NAME. Prints what the emulator or AddressSanitizer says of it.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "fixtures.h"
#include "kernels/emulator/emu_device.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr size_t kInts = 50;  // 200 bytes: not a multiple of the device's alignment

void run(const std::string& name, Device& device, Stream& stream) {
  const Buffer buffer(device, kInts * sizeof(int));
  auto* memory = static_cast<int*>(buffer.data());
  if (name == "host_read") fmt::print("{}\n", *static_cast<volatile int*>(memory));
  if (name == "device") device_read_past_end(stream, memory, kInts, memory);
  if (name == "dynamic_shared") dynamic_shared_past_end(stream, 10, memory);
  if (name == "static_shared") static_shared_past_end(stream, 10, memory);
  if (name == "workspace") {
    auto* scratch = static_cast<int*>(static_cast<GpuStream&>(stream).workspace(kInts * sizeof(int)));
    device_read_past_end(stream, scratch, kInts, memory);
  }
  stream.synchronize();
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  try {
    emu::EmuDevice device({});
    const auto stream = device.create_stream();
    run(words[1], device, *stream);
    fmt::print("no fault\n");
    return 0;
  } catch (const Error& error) {
    fmt::print("error: {}\n", error.what());
    return 1;
  }
}
