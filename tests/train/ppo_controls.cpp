// Controls: what the exact tests must not accept. Each is a mistake that others have shipped.
#include <cmath>

#include "kernels/ppo.h"
#include "ppo_world.h"

namespace tercet::ppo_test {
namespace {

struct Response {
  std::vector<double> rewards, values;
};

// GAE by the op that the trainer uses, of one response.
std::vector<double> advantages_of(const Response& response, double lambda) {
  const auto device = open_device("cpu");
  const auto stream = device->create_stream();
  const auto n = static_cast<int64_t>(response.rewards.size());
  const Buffer memory(*device, static_cast<size_t>(n) * 4 * sizeof(double) + 2 * sizeof(int32_t));
  auto* base = static_cast<double*>(memory.data());
  const auto vector = [&](int64_t index) { return Tensor(base + index * n, DType::f64, DeviceKind::cpu, {n}); };
  const Tensor offsets(base + 4 * n, DType::i32, DeviceKind::cpu, {2});
  to_device(*stream, response.rewards, vector(0));
  to_device(*stream, response.values, vector(1));
  const int32_t ends[2] = {0, static_cast<int32_t>(n)};
  stream->copy_to_device(offsets.data, ends, sizeof(ends));
  gae(*stream, {.rewards = vector(0),
                .values = vector(1),
                .offsets = offsets,
                .advantages = vector(2),
                .returns = vector(3),
                .gamma = 1,
                .lambda = lambda});
  return to_host(*stream, vector(2));
}

const Response kGolden = {{-0.01, 0.005, -0.0025, 1}, {0.1, 0.2, 0.3, 0.4}};
const std::vector<double> kGoldenAdvantages = {0.79216875, 0.739125, 0.6675, 0.6};

}  // namespace

TEST_CASE("GAE takes its golden values, which a value after the last token would spoil") {
  // Values are given to 8 decimals.
  CHECK(largest_difference(advantages_of(kGolden, 0.95), kGoldenAdvantages) < 1e-8);
  Response leaking = kGolden;
  leaking.rewards.push_back(0);
  leaking.values.push_back(100);
  std::vector<double> wrong = advantages_of(leaking, 0.95);
  wrong.pop_back();
  CHECK(largest_difference(wrong, {5.07904375, 5.251625, 5.4175, 5.6}) < 1e-8);
}

TEST_CASE("A reward that is one token early changes every advantage before it") {
  Response early = kGolden;
  std::swap(early.rewards[2], early.rewards[3]);
  CHECK(largest_difference(advantages_of(early, 0.95), kGoldenAdvantages) > 0.1);
}

}  // namespace tercet::ppo_test
