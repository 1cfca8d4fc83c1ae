// The three steps on the emu device: the GPU's kernels, executed on the CPU, train as the CPU does.
#include <cmath>

#include "app/program.h"

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
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult result = run_program(arguments);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return out;
  }
};

// The runs' first figures and last weights differ by rounding: 1e-5 in fp32, 6e-3 in bf16 (its unit roundoff is 4e-3).
void check_steps(const std::string& dtype, double tolerance) {
  CAPTURE(dtype);
  const Runs runs;
  const auto supervised = [&](const std::string& step, const char* metric) {
    const std::vector<std::string> flags = {"--model", runs.model, "--batch-size", "2", "--max-length", "100"};
    const double expected = first_metric(runs.run(step, "cpu", "fp32", flags), metric);
    CHECK(std::abs(first_metric(runs.run(step, "emu", dtype, flags), metric) - expected) <= tolerance * expected);
  };
  supervised("sft", "sft/loss");
  supervised("reward", "rm/loss");
  const std::vector<std::string> flags = {
      "--actor",          runs.model, "--reward-model",      runs.folder.path + "/reward-cpu-fp32/model.h5",
      "--rollouts",       "4",        "--max-prompt-tokens", "50",
      "--max-new-tokens", "8"};
  const std::string ppo = runs.run("ppo", "emu", dtype, flags);
  CHECK(first_metric(ppo, "objective/kl_seq") == 0);
  CHECK(std::isfinite(first_metric(ppo, "loss/policy")));
}

}  // namespace

TEST_CASE("sft, reward and ppo run on the emulated GPU and start where the CPU starts, in fp32") {
  check_steps("fp32", 1e-5);
}

TEST_CASE("sft, reward and ppo run on the emulated GPU and start where the CPU starts, in bf16") {
  check_steps("bf16", 6e-3);
}

TEST_CASE("training in fp16 is refused, since it needs a loss scale") {
  const Runs runs;
  const ProgramResult result = run_program({"sft", "--model", runs.model, "--data", runs.data, "--device", "emu",
                                            "--dtype", "fp16", "--out", runs.folder.path + "/fp16"});
  CHECK(result.exit_code == 2);
  CHECK_MESSAGE(contains(result.err, "needs a loss scale"), result.err);
  CHECK_FALSE(std::filesystem::exists(runs.folder.path + "/fp16"));
}

}  // namespace tercet
