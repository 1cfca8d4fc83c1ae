// `export` and the way back, as a user runs them.
#include <doctest/doctest.h>

#include "app/program.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

const std::string kImport = TERCET_SOURCE_DIR "/tests/golden/import/";

void check_done(const ProgramResult& result) {
  CHECK(result.exit_code == 0);
  CHECK_MESSAGE(!contains(result.err, "error"), result.err);
}

void check_failure(const ProgramResult& result, int exit_code, const std::string& message) {
  CHECK(result.exit_code == exit_code);
  CHECK_MESSAGE(contains(result.err, "tercet: error: "), result.err);
  CHECK_MESSAGE(contains(result.err, message), result.err);
}

Json info_of(const std::string& model) {
  return parse_json(run_program({"info", model, "--json", "--verify"}).out, "stdout");
}

size_t entries_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST_CASE("a model that is exported and imported again is the same model and scores the same") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary), folder = temporary.path + "/hf",
                    again = temporary.path + "/again.h5";
  const ProgramResult exported = run_program({"export", model, "--out", folder});
  check_done(exported);
  CHECK_MESSAGE(contains(exported.err, folder + ": "), exported.err);
  CHECK_MESSAGE(contains(exported.err, "parameters in fp32, for transformers' OPTForCausalLM"), exported.err);
  check_done(run_program({"import", folder, "--out", again}));
  const Json before = info_of(model), after = info_of(again);
  for (const char* key : {"kind", "parameters", "dtype", "prompt_template", "config", "tensors"})
    CHECK_MESSAGE(before.at(key) == after.at(key), key);
  const std::string data = temporary.file("d.jsonl", R"({"text": "the other"})");
  const auto score = [&](const std::string& file) {
    return run_program({"score", "--model", file, "--data", data}).out;
  };
  CHECK_FALSE(score(model).empty());
  CHECK(score(model) == score(again));
}

TEST_CASE("a reward model goes to transformers' classifier in another type and in shards") {
  const TemporaryFolder temporary;
  const std::string model = temporary.path + "/m.h5", folder = temporary.path + "/hf", again = temporary.path + "/a.h5";
  check_done(run_program({"import", kImport + "safetensors-fp32-reward", "--out", model, "--template", "none"}));
  const ProgramResult exported =
      run_program({"export", model, "--out", folder, "--dtype", "bf16", "--max-shard-size", "1KB"});
  check_done(exported);
  CHECK_MESSAGE(contains(exported.err, "in bf16, for transformers' OPTForSequenceClassification"), exported.err);
  CHECK(fs::exists(folder + "/model.safetensors.index.json"));
  check_done(run_program({"import", folder, "--out", again}));
  CHECK(info_of(again).at("kind") == Json("reward model"));
  CHECK(info_of(again).at("dtype") == Json("bf16"));
  CHECK(info_of(again).at("prompt_template") == Json("none"));
  check_done(run_program({"import", folder, "--out", again, "--template", "human-assistant"}));
  CHECK(info_of(again).at("prompt_template") == Json("human-assistant"));
}

TEST_CASE("export refuses with exit code 2 what it cannot read and a folder in use, and leaves nothing") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary), folder = temporary.path + "/hf";
  check_failure(run_program({"export", temporary.path + "/absent.h5", "--out", folder}), 2, "absent.h5");
  check_failure(run_program({"export", temporary.path, "--out", folder}), 2, "not a regular file");
  check_failure(run_program({"export", temporary.file("t.h5", "text"), "--out", folder}), 2, "t.h5");
  check_failure(run_program({"export", model, "--out", folder + "/deeper"}), 2, "there is no folder " + folder);
  CHECK(run_program({"export", model, "--out", temporary.path}).exit_code == 2);
  check_failure(run_program({"export", model, "--out", model}), 2, "there is a file of this name");
  CHECK_FALSE(fs::exists(folder));
  check_done(run_program({"export", model, "--out", folder}));
  const size_t entries = entries_in(temporary.path);
  check_failure(run_program({"export", model, "--out", folder}), 2, "hf: the folder is not empty");
  CHECK(entries_in(temporary.path) == entries);
}

TEST_CASE("a folder that does not fit the file size limit ends with exit code 1 and leaves nothing") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary);
  const size_t entries = entries_in(temporary.path);
  check_failure(run_program({"export", model, "--out", temporary.path + "/hf"}, "", "ulimit -f 8;"), 1,
                "model.safetensors");
  CHECK(entries_in(temporary.path) == entries);
}

}  // namespace
}  // namespace tercet
