// The shared library as the commands open it.
#include <doctest/doctest.h>

#include "base/error.h"
#include "device/device.h"
#include "kernels/elementwise.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

TEST_CASE("open_device(\"emu\") finds the library, and ops run its kernels") {
  const auto device = open_device("emu");
  CHECK(device->kind() == DeviceKind::emu);
  CHECK(device->supports(DType::bf16));
  CHECK_FALSE(device->supports(DType::f64));
  const auto stream = device->create_stream();
  const std::vector<float> in = {1, 2.5f, -3};
  const Buffer x(*device, 12), y(*device, 12);
  stream->copy_to_device(x.data(), in.data(), 12);
  cast(*stream, {.source = Tensor(x.data(), DType::f32, DeviceKind::emu, {3}),
                 .target = Tensor(y.data(), DType::bf16, DeviceKind::emu, {3})});
  uint16_t bits[3] = {};
  stream->copy_to_host(bits, y.data(), 6);
  stream->synchronize();
  for (size_t i = 0; i < 3; ++i) CHECK(to_float(BFloat16{bits[i]}) == in[i]);
}

TEST_CASE("an op that a device does not have is refused by name") {
  Bench bench;  // a device without ops
  const Tensor x(bench.empty<float>(1), DType::f32, DeviceKind::emu, {1});
  const Op<AffineArgs> unknown{"unknown", nullptr};
  CHECK_THROWS_WITH_AS(unknown(bench.stream(), {.x = x}), doctest::Contains("unknown has no implementation on emu"),
                       Error);
}
