// The three steps on a GPU, emulated or real, train as on the CPU.
#include <algorithm>
#include <cmath>

#include "app/program.h"
#include "devices.h"

namespace tercet {
namespace {

// The first value of a metric in a run.
double first_metric(const std::string& run, const std::string& name) {
  return json_lines(read_file(run + "/metrics.jsonl")).at(0).at(name).as_double();
}

struct Runs {
  TemporaryFolder folder;
  std::string model = make_model(folder);
  std::string data;

  Runs() {
    std::string lines;
    for (const char* word : {"one", "two", "six", "ten"})
      lines += std::string("{\"prompt\": \"") + word + "\", \"chosen\": \"yes, " + word + "\", \"rejected\": \"no\"}\n";
    data = folder.file("pairs.jsonl", lines);
  }

  // Runs a step and returns the folder of the run.
  std::string run(const std::string& step, const std::string& device, const std::string& dtype,
                  std::vector<std::string> flags) const {
    const std::string out = folder.path + "/" + step + "-" + device + "-" + dtype;
    std::vector<std::string> arguments = {step,      "--data", data,    "--device", device,
                                          "--dtype", dtype,    "--out", out,        "--template",
                                          "none",    "--lr",   "1e-2",  "--steps",  step == "ppo" ? "1" : "2"};
    if (std::ranges::find(flags, "--steps") != flags.end()) arguments.resize(arguments.size() - 2);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult result = run_program(arguments);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return out;
  }
};

// The runs' first figures differ by rounding. A loss is some ten ops away from the weights, each of which rounds as
// tests/kernels allow: 1e-5 in fp32, 1e-3 in fp16, 6e-3 in bf16; the tests below allow twice that in fp16.
void check_steps(const std::string& device, const std::string& dtype, double tolerance) {
  CAPTURE(device);
  CAPTURE(dtype);
  const Runs runs;
  const auto supervised = [&](const std::string& step, const char* metric) {
    const std::vector<std::string> flags = {"--model", runs.model, "--batch-size", "2", "--max-length", "100"};
    const double expected = first_metric(runs.run(step, "cpu", "fp32", flags), metric);
    CHECK(std::abs(first_metric(runs.run(step, device, dtype, flags), metric) - expected) <= tolerance * expected);
  };
  supervised("sft", "sft/loss");
  supervised("reward", "rm/loss");
  const std::vector<std::string> flags = {
      "--actor",          runs.model, "--reward-model",      runs.folder.path + "/reward-cpu-fp32/model.h5",
      "--rollouts",       "4",        "--max-prompt-tokens", "50",
      "--max-new-tokens", "8"};
  const std::string ppo = runs.run("ppo", device, dtype, flags);
  CHECK(first_metric(ppo, "objective/kl_seq") == 0);
  CHECK(std::isfinite(first_metric(ppo, "loss/policy")));
}

void check_loss_scale(const std::string& device) {
  const Runs runs;
  const std::string out = runs.run("sft", device, "fp16",
                                   {"--model", runs.model, "--batch-size", "4", "--max-length", "100", "--steps", "12",
                                    "--schedule", "constant", "--warmup", "0", "--max-grad-norm", "0"});
  const std::vector<Json> lines = json_lines(read_file(out + "/metrics.jsonl"));
  REQUIRE(lines.size() == 12);
  int64_t skipped = 0;
  double scale = 65536;
  for (const Json& line : lines) {
    const int64_t now = line.at("skipped_steps").as_int();
    if (now > skipped) scale /= 2;
    CHECK(line.at("loss_scale").as_double() == scale);
    CHECK(std::isfinite(line.at("sft/loss").as_double()));
    skipped = now;
  }
  CHECK(lines.back().at("sft/loss").as_double() < 0.9 * lines.front().at("sft/loss").as_double());
}

}  // namespace

TEST_CASE("sft, reward and ppo run on a GPU and start where the CPU starts, in fp32") {
  for (const std::string& device : test::present_gpu_devices()) check_steps(device, "fp32", 1e-5);
}

TEST_CASE("sft, reward and ppo run on a GPU and start where the CPU starts, in bf16") {
  for (const std::string& device : test::present_gpu_devices()) check_steps(device, "bf16", 6e-3);
}

TEST_CASE("sft, reward and ppo run on a GPU and start where the CPU starts, in fp16") {
  for (const std::string& device : test::present_gpu_devices()) check_steps(device, "fp16", 2e-3);
}

TEST_CASE("fp16 lowers its loss scale where gradients overflow, and learns at the scale that it finds") {
  for (const std::string& device : test::present_gpu_devices()) check_loss_scale(device);
}

}  // namespace tercet
