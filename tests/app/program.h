// Running the built program, and a small model for it.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "temporary_folder.h"

namespace tercet {

using testing::TemporaryFolder;

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;
};

// An argument as the shell takes it literally.
inline std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Runs a program of the build folder with `input` on its stdin; `before` is shell text ahead of the command
// (NAME=value, ulimit ...;).
inline ProgramResult run_built(const std::string& program, const std::vector<std::string>& arguments,
                               const std::string& input = "", const std::string& before = "") {
  const TemporaryFolder temporary;
  std::string command = before + " " + shell_quoted(TERCET_BINARY_DIR "/" + program);
  for (const std::string& argument : arguments) command += " " + shell_quoted(argument);
  command += " < " + temporary.file("in", input) + " 2> " + temporary.path + "/err > " + temporary.path + "/out";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(temporary.path + "/out"),
          read_file(temporary.path + "/err")};
}

inline ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input = "",
                                 const std::string& before = "") {
  return run_built("tercet", arguments, input, before);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The lines of JSON that a command printed.
inline std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(parse_json(line, "stdout"));
  return lines;
}

inline const std::string kTokenizerFolder = TERCET_SOURCE_DIR "/tests/golden/import/bin-fp32";

// A fresh language model of 2 layers with 128 positions.
inline std::string make_model(const TemporaryFolder& folder, const std::string& seed = "1") {
  const std::string config = folder.file(
      "config.json",
      R"({"model_type": "opt", "vocab_size": 272, "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 32,)"
      R"( "num_attention_heads": 2, "max_position_embeddings": 128, "init_std": 0.3})");
  const std::string model = folder.path + "/model-" + seed + ".h5";
  const ProgramResult result =
      run_program({"init", "--config", config, "--tokenizer", kTokenizerFolder, "--seed", seed, "--out", model});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return model;
}

}  // namespace tercet
