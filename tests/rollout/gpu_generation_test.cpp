// Generation on a GPU, emulated or real: captured graphs and idle slots against plain steps and the CPU.
#include <doctest/doctest.h>

#include "devices.h"
#include "small_model.h"

namespace tercet::testing {
namespace {

constexpr SamplingOptions kGreedy{.temperature = 0};
constexpr SamplingOptions kSampled{.temperature = 0.9, .seed = 3, .site = 1};
constexpr SamplingOptions kTruncated{.temperature = 1.1, .top_k = 9, .top_p = 0.8, .seed = 3, .site = 1};

bool equal(const std::vector<Generation>& a, const std::vector<Generation>& b) {
  return std::ranges::equal(a, b, [](const Generation& x, const Generation& y) {
    return x.response == y.response && x.log_probs == y.log_probs && x.finish == y.finish;
  });
}

GeneratorOptions with_graphs(DType dtype, int64_t slots, bool graphs) {
  GeneratorOptions options = small_options(dtype, slots);
  options.graphs = graphs;
  return options;
}

// Responses in few slots: sequences end one by one, so that every bucket occurs, all slots among them, and prompts join
// in between.
void check_graphs(const std::string& device, const std::string& shape, DType dtype, int64_t slots,
                  std::initializer_list<SamplingOptions> samplings) {
  CAPTURE(device);
  CAPTURE(shape);
  CAPTURE(slots);
  CAPTURE(std::string(dtype_name(dtype)));
  const OptConfig config = small_config(shape);
  SmallGenerator captured(config, with_graphs(dtype, slots, true), device);
  SmallGenerator plain(config, with_graphs(dtype, slots, false), device);
  const auto requests = mixed_requests(static_cast<size_t>(slots) + 2, 8, config.vocab_size);
  for (const SamplingOptions& sampling : samplings) {
    CAPTURE(sampling.site);
    const int64_t before = captured.generator.replayed_steps();
    CHECK(equal(captured.generate(requests, sampling), plain.generate(requests, sampling)));
    CHECK(captured.generator.replayed_steps() > before + 3);
  }
  CHECK(plain.generator.replayed_steps() == 0);
}

TEST_CASE("decoding from captured graphs draws the bits of plain steps, whatever the sampling and the slots") {
  for (const std::string& device : test::present_gpu_devices()) {
    SamplingOptions other_site = kSampled;
    other_site.site = 2;
    check_graphs(device, "pre-LN", DType::f32, 3, {kGreedy, kSampled, kTruncated, other_site, kSampled});
    check_graphs(device, "GELU without biases", DType::bf16, 4, {kSampled});
    check_graphs(device, "post-LN with projections", DType::f16, 1, {kSampled});
  }
}

TEST_CASE("greedy responses of a GPU in fp32 are the CPU's while no choice is within rounding") {
  const OptConfig config = small_config("pre-LN");
  const auto requests = mixed_requests(6, 40, config.vocab_size);
  SmallGenerator cpu(config, small_options(DType::f32, 3));
  const auto expected = cpu.generate(requests, kGreedy);
  for (const std::string& device : test::present_gpu_devices()) {
    CAPTURE(device);
    SmallGenerator gpu(config, small_options(DType::f32, 3), device);
    const auto generations = gpu.generate(requests, kGreedy);
    for (size_t i = 0; i < requests.size(); ++i) CHECK(generations[i].response == expected[i].response);
  }
}

TEST_CASE("the CPU captures nothing") {
  const OptConfig config = small_config("pre-LN");
  SmallGenerator cpu(config, small_options(DType::f32, 3));
  cpu.generate(mixed_requests(3, 5, config.vocab_size), kGreedy);
  CHECK(cpu.generator.replayed_steps() == 0);
}

}  // namespace
}  // namespace tercet::testing
