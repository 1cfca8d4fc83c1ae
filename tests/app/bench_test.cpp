// `tercet bench`: every op is there, every case runs on every device, and floors are what they should be. Times are
// never tested.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "app/bench_cases.h"
#include "app/bench_step.h"
#include "app/command_line.h"
#include "app/program.h"
#include "base/error.h"
#include "device/peak_rate.h"
#include "kernels/op_list.h"

namespace tercet {
namespace {

std::vector<BenchCase> cases_of(const std::string& model, DType dtype, int64_t tokens) {
  return bench_cases(bench_sizes(model, bench_config(model, "--model-size").config, dtype, tokens));
}

const BenchCase& find_case(const std::vector<BenchCase>& cases, const std::string& name,
                           const std::string& shape = "") {
  for (const BenchCase& one : cases)
    if (one.name() == name && (shape.empty() || one.shape == shape)) return one;
  FAIL("there is no case " << name << " of " << shape);
  return cases.front();
}

std::set<std::string> op_names() {
  std::set<std::string> names;
  for (const OpEntry& op : all_ops()) names.insert(op.name);
  return names;
}

// Runs a bench that must succeed, with --json and --out, and returns its results.
std::vector<Json> run_bench_program(std::vector<std::string> arguments) {
  const TemporaryFolder temporary;
  const std::string out = temporary.path + "/results.json";
  arguments.insert(arguments.begin(), "bench");
  arguments.insert(arguments.end(), {"--json", "--out", out});
  const ProgramResult result = run_program(arguments);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  CHECK(read_file(out) == result.out);
  return json_lines(result.out);
}

void check_positive(const Json& line, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    CAPTURE(name);
    CHECK(line.at(name).as_double() > 0);
    CHECK(std::isfinite(line.at(name).as_double()));
  }
}

// All cases of the tiny model on a device: one result each, with figures that are numbers.
void check_kernels(const std::string& device, const std::string& dtype) {
  CAPTURE(device);
  CAPTURE(dtype);
  const std::vector<Json> lines = run_bench_program(
      {"kernels", "--device", device, "--dtype", dtype, "--model-size", "tiny", "--tokens", "32", "--repeats", "1"});
  CHECK(lines.size() == cases_of("tiny", parse_dtype(dtype, ""), 32).size());
  std::set<std::string> ops;
  for (const Json& line : lines) {
    CAPTURE(line.at("op").as_string());
    ops.insert(line.at("op").as_string());
    check_positive(line, {"seconds", "bytes", "bytes_per_s", "floor_seconds", "share_of_floor", "share_of_measured",
                          "copy_bytes_per_s", "product_flop_per_s"});
    CHECK(line.at("device").as_string().starts_with(device));
    CHECK(line.at("peak_flop_per_s").is_null());
  }
  CHECK(ops == op_names());
}

const std::vector<std::string> kPhases = {"sft", "reward", "ppo generate", "ppo score", "ppo update", "ppo iteration"};

void check_step(const std::vector<Json>& lines) {
  std::vector<std::string> phases;
  for (const Json& line : lines) {
    phases.push_back(line.at("phase").as_string());
    CAPTURE(phases.back());
    check_positive(line, {"seconds", "units_per_s", "flop", "flop_per_s", "mfu", "plan_bytes"});
  }
  CHECK(phases == kPhases);
}

bool has_emulator() { return std::filesystem::exists(TERCET_BINARY_DIR "/libtercet_emu.so"); }

}  // namespace

TEST_CASE("every op of kernels/ is among the cases of a model") {
  std::set<std::string> ops;
  for (const BenchCase& one : cases_of("opt-1.3b", DType::bf16, 8192)) {
    ops.insert(one.op);
    CHECK_MESSAGE(one.bytes > 0, one.name());
    CHECK_MESSAGE(find_op(one.op).supports(DeviceKind::cuda, one.dtype), one.name());
  }
  CHECK(ops == op_names());
}

TEST_CASE("no two cases of a model share name and shape") {
  for (const char* model : {"opt-1.3b", "opt-350m", "tiny"}) {
    std::set<std::string> names;
    for (const BenchCase& one : cases_of(model, DType::bf16, 8192))
      CHECK_MESSAGE(names.insert(one.name() + " " + one.shape).second, one.name());
  }
}

// Floors in us of an H200 at 4.3 TB/s and 780 TFLOP/s, 8192 tokens in sequences of 512, bf16, computed elsewhere from
// bytes and FLOP per element and rounded to 1 us.
TEST_CASE("floors are those of the literature's bytes and FLOP per element") {
  const DeviceRates rates{.copy = 4.3e12, .product = 780e12};
  const auto check = [&](const std::vector<BenchCase>& cases, const std::string& name, double expected) {
    CAPTURE(name);
    // Half a microsecond of rounding, and up to 1 % of statistics, offsets and vectors that the figures leave out.
    CHECK(std::abs(find_case(cases, name).floor_seconds(rates) * 1e6 - expected) <= 0.5 + 0.01 * expected);
  };
  const std::vector<BenchCase> small = cases_of("opt-1.3b", DType::bf16, 8192);
  const std::vector<BenchCase> large = cases_of("opt-13b", DType::bf16, 8192);
  check(small, "layer_norm_forward", 16);
  check(small, "layer_norm_forward, with residual", 31);
  check(large, "layer_norm_forward, with residual", 78);
  check(small, "layer_norm_backward, with residual", 31);
  check(large, "layer_norm_backward, with residual", 78);
  check(small, "attention_forward", 31);
  check(large, "attention_forward", 78);
  check(small, "attention_backward", 62);
  check(small, "paged_attention, decoding", 47);
  check(large, "paged_attention, decoding", 117);

  const auto flop_time = [&](const BenchCase& one) { return static_cast<double>(one.flops) / rates.product * 1e6; };
  CHECK(std::abs(flop_time(find_case(small, "attention_forward")) - 22) < 0.5);
  CHECK(std::abs(flop_time(find_case(large, "attention_backward")) - 138) < 0.5);
  double products = 0;
  for (const char* layer : {"qkv", "attention out", "fc1 + relu", "fc2"})
    products += flop_time(find_case(small, std::string("linear_forward, ") + layer));
  CHECK(std::abs(products - 1057) < 1);
  // A quarter of the rows: 2048 of 8192.
  const double logits = flop_time(find_case(small, "linear_forward, logits", "2048 x 2048 -> 50272"));
  CHECK(std::abs(4 * logits - 2163) < 1);
  const double log_probs = find_case(small, "token_log_prob_forward", "2048 x 50272").floor_seconds(rates) * 1e6;
  CHECK(std::abs(4 * log_probs - 192) < 1);
  const double gradients = find_case(small, "token_log_prob_backward", "2048 x 50272").floor_seconds(rates) * 1e6;
  CHECK(std::abs(4 * gradients - 383) < 1);
  // 16-bit weights beside an fp32 master: 34 bytes per parameter; fp32 alone: 32.
  const int64_t parameters = 12 * 2048 * 2048;
  CHECK(find_case(small, "adamw").bytes == 34 * parameters);
  CHECK(find_case(cases_of("opt-1.3b", DType::f32, 8192), "adamw").bytes == 32 * parameters);
}

TEST_CASE("a forward pass takes 24 H^2 FLOP per token and block, 2 L^2 H for attention, and what the head takes") {
  const OptConfig config = OptConfig::released("opt-1.3b");
  const int64_t lengths[] = {512, 100};
  const double hidden = 2048, layers = 24;
  const double blocks = layers * (24 * hidden * hidden * 612 + 2 * hidden * (512.0 * 512 + 100.0 * 100));
  CHECK(forward_flops(config, Head::language_model, lengths, 0) == blocks);
  CHECK(forward_flops(config, Head::language_model, lengths, 10) == blocks + 10 * 2 * hidden * 50272);
  CHECK(forward_flops(config, Head::scalar, lengths, 10) == blocks + 10 * 2 * hidden);
}

TEST_CASE("a time is the median, with the smallest and the distance from the 10th to the 90th percentile") {
  const BenchTime time = bench_time({5, 1, 2, 4, 3, 6, 7, 8, 9, 11, 10});
  CHECK(time.median == 6);
  CHECK(time.smallest == 1);
  CHECK(time.spread == doctest::Approx((10.0 - 2.0) / 6).epsilon(1e-12));
  CHECK(time.repeats == 11);
  CHECK(bench_time({1, 2}).median == 1.5);
}

TEST_CASE("dense 16-bit peaks are known for A100, H100 SXM and H200 and for nothing else") {
  CHECK(known_peak("cuda:0 (NVIDIA H200, sm_90, 139 GiB)", DType::bf16) == 989e12);
  CHECK(known_peak("cuda:0 (NVIDIA H100 80GB HBM3, sm_90, 79 GiB)", DType::f16) == 989e12);
  CHECK(known_peak("cuda:0 (NVIDIA A100-SXM4-80GB, sm_80, 79 GiB)", DType::bf16) == 312e12);
  CHECK(known_peak("cuda:0 (NVIDIA H100 PCIe, sm_90, 79 GiB)", DType::bf16) == 0);
  CHECK(known_peak("cuda:0 (NVIDIA H200 NVL, sm_90, 139 GiB)", DType::bf16) == 0);
  CHECK(known_peak("cuda:0 (NVIDIA L4, sm_89, 22 GiB)", DType::bf16) == 0);
  CHECK(known_peak("cuda:0 (NVIDIA H200, sm_90, 139 GiB)", DType::f32) == 0);
  CHECK(known_peak("cpu (2 threads)", DType::bf16) == 0);
}

TEST_CASE("the floor refers to the peak where it is known, and to the measured product elsewhere") {
  const BenchCase one{.bytes = 100, .flops = 1000};
  CHECK(one.floor_seconds({.copy = 10, .product = 1000}) == 10);
  CHECK(one.floor_seconds({.copy = 1000, .product = 10}) == 100);
  CHECK(one.floor_seconds({.copy = 1000, .product = 10, .peak = 100}) == 10);
}

TEST_CASE("all cases run on the cpu in fp64, with either activation and a last sequence of one token") {
  const std::unique_ptr<Device> device = open_device("cpu");
  const std::unique_ptr<Stream> stream = device->create_stream();
  OptConfig config = bench_config("tiny", "").config;
  for (const Activation activation : {Activation::relu, Activation::gelu}) {
    config.activation_function = activation;
    for (const BenchCase& one : bench_cases(bench_sizes("tiny", config, DType::f64, 51))) {
      CAPTURE(one.name());
      BenchTensors tensors(*stream);
      const BenchTime time = measure(*stream, {one.prepare(tensors)}, BenchPace{});
      CHECK(time.median > 0);
      CHECK(tensors.allocated_bytes() > 0);
    }
  }
  CHECK(device->allocated_bytes() == 0);
}

TEST_CASE("a measurement calls the sets in turn and restores each before it") {
  const std::unique_ptr<Device> device = open_device("cpu");
  const std::unique_ptr<Stream> stream = device->create_stream();
  std::string log;
  const std::vector<BenchCall> calls = {{[&](Stream&) { log += "a"; }, [&](Stream&) { log += "r"; }},
                                        {[&](Stream&) { log += "b"; }}};
  const BenchTime time = measure(*stream, calls, {.measurement_seconds = 0, .least_repeats = 2, .most_repeats = 2});
  CHECK(time.calls == 1);
  CHECK(time.repeats == 2);
  CHECK(log ==
        "abab"
        "ra"
        "ra"
        "ra");  // warm-up, first measurement left out, two measurements
  log.clear();
  measure(*stream, calls, {.measurement_seconds = 1e-3, .least_repeats = 1, .most_repeats = 1});
  CHECK(log.substr(0, 9) == "ababrabab");
}

TEST_CASE("bench kernels runs all ops on the cpu") { check_kernels("cpu", "fp32"); }

TEST_CASE("bench kernels runs all ops on the emulated GPU, captured as graphs, in fp32 and bf16") {
  if (!has_emulator()) {
    MESSAGE("skipped: this build has no emulator");
    return;
  }
  check_kernels("emu", "fp32");
  check_kernels("emu", "bf16");
}

TEST_CASE("the table has a header with date, device and rates, and a row for each case that --ops chooses") {
  const ProgramResult result = run_program({"bench", "kernels", "--device", "cpu", "--model-size", "tiny,tiny",
                                            "--tokens", "32", "--repeats", "1", "--ops", "attention_forward,gae"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  std::vector<std::string> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  REQUIRE(lines.size() == 8);
  CHECK_MESSAGE(lines[0].substr(10).starts_with(", cpu ("), lines[0]);
  CHECK_MESSAGE(lines[1].starts_with("copy of 128.0 MiB: "), lines[1]);
  CHECK_MESSAGE(contains(lines[1], "peak of dense fp32: not known"), lines[1]);
  CHECK(lines[2].empty());
  CHECK(lines[3].starts_with("model     op"));
  for (size_t i = 4; i < lines.size(); ++i) {
    CHECK_MESSAGE(lines[i].starts_with(i % 2 == 0 ? "tiny      attention_forward " : "tiny      gae "), lines[i]);
    CHECK(lines[i].size() == lines[3].size());
  }
}

TEST_CASE("bench step times SFT, reward model and PPO, of sizes by name and by file") {
  const TemporaryFolder temporary;
  const std::string config = temporary.file(
      "config.json",
      R"({"model_type": "opt", "vocab_size": 320, "hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 32,)"
      R"( "num_attention_heads": 2, "max_position_embeddings": 24})");
  const std::vector<Json> lines =
      run_bench_program({"step", "--device", "cpu", "--model-size", "tiny", "--critic-size", config, "--steps", "1",
                         "--batch-size", "3", "--prompt-tokens", "8", "--new-tokens", "5"});
  check_step(lines);
  CHECK(lines[0].at("model") == Json("tiny"));
  CHECK(lines[1].at("model") == Json(config));
  CHECK(lines[5].at("model") == Json("tiny + " + config));
  const std::vector<int64_t> lengths(3, 13);
  CHECK(lines[0].at("flop").as_double() ==
        3 * forward_flops(bench_config("tiny", "").config, Head::language_model, lengths, 15));
}

TEST_CASE("bench step runs on the emulated GPU in bf16") {
  if (!has_emulator()) {
    MESSAGE("skipped: this build has no emulator");
    return;
  }
  check_step(run_bench_program({"step", "--device", "emu", "--dtype", "bf16"}));
}

TEST_CASE("wrong arguments of bench end with exit code 2 and one line that says what and what to do") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> table = {
      {{}, "bench needs kernels|step; usage: tercet bench kernels|step"},
      {{"all"}, "kernels|step: \"all\" is not allowed; expected kernels or step"},
      {{"kernels", "--ops", "convolution"}, "--ops: no case has \"convolution\" in its name; the ops are adamw, "},
      {{"kernels", "--model-size", "opt-1.4b"}, "--model-size: no model size is called \"opt-1.4b\"; use tiny, "},
      {{"kernels", "--model-size", "tiny,"}, "--model-size: no model size is called \"\""},
      {{"kernels", "--model-size", "absent.json"}, "absent.json"},
      {{"kernels", "--model-size", "tiny", "--tokens", "4"}, "--tokens: 4 tokens are too few for the shapes; give at"},
      {{"kernels", "--dtype", "bf16"}, "--dtype: cpu does not compute in bf16"},
      {{"kernels", "--steps", "3"}, "--steps: it belongs to bench step; leave the flag out"},
      {{"step", "--ops", "gae"}, "--ops: it belongs to bench kernels; leave the flag out"},
      {{"step", "--repeats", "3"}, "--repeats: it belongs to bench kernels"},
      {{"step", "--model-size", "tiny", "opt-125m"}, "--model-size: bench step takes one size"},
      {{"step", "--model-size", "tiny", "--critic-size", "opt-125m"}, "--critic-size: tiny has 320 tokens, opt-125m"},
      {{"step", "--prompt-tokens", "100", "--new-tokens", "29"}, "129 tokens exceed the 128 positions of tiny"},
      {{"step", "--tokens", "100"}, "--tokens: 100 are too few for a pair of 128 tokens"},
  };
  for (const auto& entry : table) {
    const std::string& message = entry.second;
    CAPTURE(message);
    std::vector<std::string> arguments = entry.first;
    arguments.insert(arguments.begin(), "bench");
    if (arguments.size() > 2) arguments.insert(arguments.end(), {"--device", "cpu"});
    const ProgramResult result = run_program(arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::ranges::count(result.err, '\n') == 1);
    CHECK_MESSAGE(contains(result.err, message), result.err);
  }
}

}  // namespace tercet
