// Streams: work runs late, in an order that only events bind; capture; scratch memory; products.
#include <cmath>
#include <numeric>

#include "device/memory_plan.h"
#include "fixtures.h"
#include "workbench.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr emu::Settings kOrders[] = {{.order = emu::Order::fifo},
                                     {.order = emu::Order::lifo},
                                     {.order = emu::Order::random, .seed = 1},
                                     {.order = emu::Order::random, .seed = 2},
                                     {.order = emu::Order::random, .seed = 3}};

// (0 + 1) * 2 = 2 when the second stream waits for the first.
int add_then_double(const emu::Settings& settings, bool with_event) {
  Bench bench;
  emu::settings() = settings;
  const auto second = bench.device().create_stream();
  int* x = bench.put(std::vector<int>{0});
  add_one(bench.stream(), 1, x);
  const auto added = bench.stream().record();
  if (with_event) second->wait(*added);
  twice(*second, 1, x);
  int result = -1;
  second->copy_to_host(&result, x, sizeof(result));
  second->synchronize();
  return result;
}

Tensor matrix(Bench& bench, DType dtype, int64_t rows, int64_t columns, const std::vector<double>& values) {
  std::vector<std::byte> converted(values.size() * dtype_size(dtype));
  convert(DType::f64, values.data(), dtype, converted.data(), static_cast<int64_t>(values.size()));
  return Tensor(bench.put(converted), dtype, DeviceKind::emu, {rows, columns});
}

std::vector<double> values_of(Bench& bench, const Tensor& tensor) {
  const auto bytes = bench.get(static_cast<const std::byte*>(tensor.data),
                               static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  convert(tensor.dtype, bytes.data(), DType::f64, values.data(), tensor.elements());
  return values;
}

}  // namespace

TEST_CASE("an event orders two streams, and a missing one is seen in some order") {
  int wrong = 0;
  for (const emu::Settings& settings : kOrders) {
    CHECK(add_then_double(settings, true) == 2);
    wrong += add_then_double(settings, false) != 2;
  }
  CHECK(wrong > 0);
}

TEST_CASE("host memory is read when the copy runs, so that a host that writes too early is seen") {
  Bench bench;
  int source = 1;
  int* x = bench.empty<int>(1);
  bench.stream().copy_to_device(x, &source, sizeof(source));
  source = 2;
  CHECK(bench.get(x, 1)[0] == 2);
}

TEST_CASE("host memory is written when the host waits, not before") {
  Bench bench;
  const int* x = bench.put(std::vector<int>{5});
  int target = -1;
  bench.stream().copy_to_host(&target, x, sizeof(target));
  const auto event = bench.stream().record();
  CHECK(target == -1);
  event->synchronize();
  CHECK(target == 5);
}

TEST_CASE("a captured graph runs when it is launched, each time") {
  for (const emu::Settings& settings : kOrders) {
    Bench bench;
    emu::settings() = settings;
    int* x = bench.put(std::vector<int>{1});
    int* y = bench.empty<int>(1);
    bench.gpu_stream().begin_capture();
    add_one(bench.stream(), 1, x);
    twice(bench.stream(), 1, x);
    bench.stream().copy_on_device(y, x, sizeof(int));
    CHECK_THROWS_AS(bench.stream().synchronize(), Error);
    const auto graph = bench.gpu_stream().end_capture();
    CHECK(bench.get(x, 1)[0] == 1);
    bench.gpu_stream().launch(*graph);
    bench.gpu_stream().launch(*graph);
    CHECK(bench.get(y, 1)[0] == 10);
  }
}

TEST_CASE("a capture that fails leaves nothing queued and the stream usable") {
  Bench bench;
  int* x = bench.put(std::vector<int>{1});
  CHECK_THROWS_AS(capture(bench.gpu_stream(),
                          [&] {
                            add_one(bench.stream(), 1, x);
                            bench.stream().synchronize();
                          }),
                  Error);
  CHECK(bench.get(x, 1)[0] == 1);
  const auto graph = capture(bench.gpu_stream(), [&] { twice(bench.stream(), 1, x); });
  bench.gpu_stream().launch(*graph);
  CHECK(bench.get(x, 1)[0] == 2);
}

TEST_CASE("a captured stream may not wait for another stream") {
  Bench bench;
  const auto other = bench.device().create_stream();
  const auto event = other->record();
  bench.gpu_stream().begin_capture();
  CHECK_THROWS_AS(bench.stream().wait(*event), Error);
  bench.gpu_stream().end_capture();
}

TEST_CASE("scratch memory is one piece per stream, poisoned for each op, and limited") {
  Bench bench;
  auto* first = static_cast<int*>(bench.gpu_stream().workspace(64));
  bench.stream().fill_zero(first, 64);
  CHECK(bench.get(first, 1)[0] == 0);
  auto* second = static_cast<int*>(bench.gpu_stream().workspace(64));
  CHECK(second == first);
  CHECK(bench.get(second, 1)[0] == -1);
  CHECK_THROWS_AS(bench.gpu_stream().workspace(GpuStream::kWorkspaceBytes + 1), Error);
}

TEST_CASE("the memory of streams is what the device says it is, while they live") {
  Bench bench;
  const auto planned = [&] {
    MemoryPlan plan;
    plan.add_outside(bench.device().stream_footprint());
    return plan.outside_bytes();
  };
  const size_t one = planned();
  CHECK(one >= GpuStream::kWorkspaceBytes);
  CHECK(bench.device().allocated_bytes() == one);
  {
    const auto second = bench.device().create_stream();
    CHECK(planned() == 2 * one);
    CHECK(bench.device().allocated_bytes() == 2 * one);
  }
  CHECK(planned() == one);
  bench.gpu_stream().workspace(GpuStream::kWorkspaceBytes);
  CHECK(bench.device().allocated_bytes() == one);
}

TEST_CASE("copies outside of an allocation, or between host and device the wrong way round, are refused") {
  Bench bench;
  int* x = bench.put(std::vector<int>{1, 2});
  int host[4] = {};
  CHECK_THROWS_WITH_AS(bench.stream().copy_to_device(x, host, 12), doctest::Contains("allocation of 8 bytes"), Error);
  CHECK_THROWS_WITH_AS(bench.stream().copy_to_device(host, host, 4), doctest::Contains("not device memory"), Error);
  CHECK_THROWS_WITH_AS(bench.stream().copy_to_host(x, x, 4), doctest::Contains("host memory is expected"), Error);
  CHECK_THROWS_AS(bench.stream().fill_zero(x + 1, 8), Error);
}

TEST_CASE("a product widens 16-bit operands, adds bias, applies relu and rounds once") {
  Bench bench;
  const std::vector<double> a = {1, -2, 3, 0.5, 4, -1}, b = {2, 1, -1, 3, 0.25, -2}, bias = {0.5, -20};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool transpose : {false, true}) {
      const std::vector<double> a_stored = transpose ? std::vector<double>{1, 0.5, -2, 4, 3, -1} : a;
      const std::vector<double> b_stored = transpose ? std::vector<double>{2, -1, 0.25, 1, 3, -2} : b;
      Product product;
      product.a = matrix(bench, dtype, transpose ? 3 : 2, transpose ? 2 : 3, a_stored);
      product.b = matrix(bench, dtype, transpose ? 2 : 3, transpose ? 3 : 2, b_stored);
      product.c = matrix(bench, dtype, 2, 2, {1, 1, 1, 1});
      product.transpose_a = product.transpose_b = transpose;
      product.alpha = 2;
      product.beta = 1;
      bench.gpu_stream().product(product);
      CHECK(values_of(bench, product.c) == std::vector<double>{10.5, -21, -5.5 + 0.0, 30});
      product.beta = 0;
      product.alpha = 1;
      product.relu = true;
      product.bias = matrix(bench, dtype, 1, 2, bias).reshaped({2});
      bench.gpu_stream().product(product);
      CHECK(values_of(bench, product.c) == std::vector<double>{5.25, 0, 0, 0});
    }
}

TEST_CASE("a product may have no rows or columns, but a depth; shapes that do not fit are refused") {
  Bench bench;
  Product product;
  product.a = Tensor(bench.empty<float>(1), DType::f32, DeviceKind::emu, {0, 2});
  product.b = matrix(bench, DType::f32, 2, 3, {1, 2, 3, 4, 5, 6});
  product.c = Tensor(bench.empty<float>(1), DType::f32, DeviceKind::emu, {0, 3});
  CHECK_NOTHROW(bench.gpu_stream().product(product));
  product.b.shape[0] = 1;
  CHECK_THROWS_AS(bench.gpu_stream().product(product), Error);
  product.a.shape[1] = 0;
  product.b.shape[0] = 0;
  CHECK_THROWS_AS(bench.gpu_stream().product(product), Error);
}
