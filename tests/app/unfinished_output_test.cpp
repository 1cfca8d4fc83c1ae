// Full disks and signals in the middle of a command: the last good file stays, and nothing unfinished does.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "app/program.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

// A limit on the size of files, in blocks of 512 bytes, stands for a full disk.
std::string full_after(int blocks) { return "ulimit -f " + std::to_string(blocks) + ";"; }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

void check_full(const ProgramResult& result, const std::string& message) {
  CHECK(result.exit_code == 1);
  CHECK_MESSAGE(contains(result.err, "tercet: error: "), result.err);
  CHECK_MESSAGE(contains(result.err, message), result.err);
}

TEST_CASE("on a full disk init, import and export end with exit code 1 and the last good file stays as it was") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary), folder = temporary.path + "/hf";
  const std::string golden = TERCET_SOURCE_DIR "/tests/golden/import/safetensors-fp32";
  const std::string before = hash_file(model);
  const auto names = names_in(temporary.path);
  for (const int blocks : {1, 8, 60}) {
    CAPTURE(blocks);
    check_full(run_program({"init", "--config", temporary.path + "/config.json", "--tokenizer", kTokenizerFolder,
                            "--out", model},
                           "", full_after(blocks)),
               model);
    check_full(run_program({"export", model, "--out", folder}, "", full_after(blocks)), folder);
  }
  check_full(run_program({"import", golden, "--out", model}, "", full_after(8)), model);
  CHECK(hash_file(model) == before);
  CHECK(names_in(temporary.path) == names);
}

TEST_CASE("results that cannot be written to stdout end with exit code 1") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary);
  const std::string command = shell_quoted(TERCET_BINARY_DIR "/tercet") + " info " + shell_quoted(model) +
                              " > /dev/full 2> " + temporary.path + "/err";
  const int status = std::system(command.c_str());
  CHECK(WEXITSTATUS(status) == 1);
  CHECK(contains(read_file(temporary.path + "/err"), "No space left on device"));
}

struct Training {
  Training() {
    model = make_model(folder);
    data = folder.file("d.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
  }
  std::vector<std::string> arguments(const std::string& out, const std::string& steps) const {
    return {"sft", "--model",     model,     "--data", data,   "--max-length", "48", "--batch-size",
            "1",   "--steps",     steps,     "--lr",   "1e-3", "--threads",    "1",  "--device",
            "cpu", "--log-every", "1000000", "--out",  out};
  }
  std::string result_of(const std::string& run) const {
    return hash_file(run + "/model.h5") + hash_file(run + "/metrics.jsonl");
  }
  TemporaryFolder folder;
  std::string model, data;
};

TEST_CASE("a run whose disk is full from the start says so, and goes on once there is room") {
  const Training training;
  const std::string out = training.folder.path + "/run", whole = training.folder.path + "/whole";
  check_full(run_program(training.arguments(out, "3"), "", full_after(16)), "checkpoints/step-00000003.h5");
  CHECK(names_in(out + "/checkpoints").empty());
  CHECK_FALSE(fs::exists(out + "/model.h5"));
  REQUIRE(run_program({"sft", "--resume", "--out", out}).exit_code == 0);
  REQUIRE(run_program(training.arguments(whole, "3")).exit_code == 0);
  CHECK(training.result_of(out) == training.result_of(whole));
}

TEST_CASE(
    "a run whose disk fills up keeps its last checkpoint and goes on from it to the bytes of an undisturbed run") {
  const Training training;
  const std::string out = training.folder.path + "/run", whole = training.folder.path + "/whole";
  auto arguments = training.arguments(out, "900");
  arguments.insert(arguments.end(), {"--save-every", "300", "--keep", "1"});
  // Between the size of a checkpoint and that of the metrics of all steps.
  check_full(run_program(arguments, "", full_after(400)), "metrics.jsonl: cannot write to the log");
  const auto checkpoints = names_in(out + "/checkpoints");
  REQUIRE(checkpoints.size() == 1);
  CHECK(checkpoints[0].starts_with("step-"));
  REQUIRE(run_program({"sft", "--resume", "--out", out}).exit_code == 0);
  std::ranges::replace(arguments, out, whole);
  REQUIRE(run_program(arguments).exit_code == 0);
  CHECK(training.result_of(out) == training.result_of(whole));
}

// A model whose export is many files, so that there is time to disturb it.
std::string make_deep_model(const TemporaryFolder& folder) {
  const std::string config = folder.file(
      "deep.json",
      R"({"model_type": "opt", "vocab_size": 272, "hidden_size": 16, "num_hidden_layers": 96, "ffn_dim": 32,)"
      R"( "num_attention_heads": 2, "max_position_embeddings": 128})");
  const std::string model = folder.path + "/deep.h5";
  REQUIRE(run_program({"init", "--config", config, "--tokenizer", kTokenizerFolder, "--out", model}).exit_code == 0);
  return model;
}

bool holds_unfinished(const std::string& folder) {
  return std::ranges::any_of(names_in(folder), [](const std::string& name) { return contains(name, ".partial-"); });
}

// Exports in another process, sends `signal` once files are being written, and returns what waitpid() says.
int disturb_export(const std::string& model, const std::string& out, int signal) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(TERCET_BINARY_DIR "/tercet", "tercet", "export", model.c_str(), "--out", out.c_str(), "--max-shard-size",
            "1KB", static_cast<char*>(nullptr));
    ::_exit(99);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const std::string parent = fs::path(out).parent_path().string();
  while (!holds_unfinished(parent) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  ::kill(child, signal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_CASE("an export that is stopped by a signal leaves nothing; what a killed one leaves, the next one removes") {
  const TemporaryFolder temporary;
  const std::string model = make_deep_model(temporary), out = temporary.path + "/hf";
  const auto names = names_in(temporary.path);
  for (const int signal : {SIGINT, SIGTERM}) {
    const int status = disturb_export(model, out, signal);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);
    CHECK(names_in(temporary.path) == names);
  }
  CHECK(WIFSIGNALED(disturb_export(model, out, SIGKILL)));
  CHECK(holds_unfinished(temporary.path));
  REQUIRE(run_program({"export", model, "--out", out}).exit_code == 0);
  CHECK_FALSE(holds_unfinished(temporary.path));
  CHECK(fs::exists(out + "/model.safetensors"));
}

}  // namespace
}  // namespace tercet
