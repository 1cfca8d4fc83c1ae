// Documents, recipes, scripts and messages name only flags that exist.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "app/flags.h"
#include "app/pipeline_file.h"
#include "base/error.h"
#include "base/file.h"
#include "train/toml.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

// Files of the project below a folder with one of these endings.
std::vector<std::string> files_below(const std::string& folder, const std::vector<std::string>& endings) {
  std::vector<std::string> files;
  const std::string root = std::string(TERCET_SOURCE_DIR "/") + folder;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().string();
    if (std::ranges::any_of(endings, [&](const std::string& ending) { return name.ends_with(ending); }))
      files.push_back(name);
  }
  return files;
}

std::vector<std::string> documents() {
  std::vector<std::string> files = {TERCET_SOURCE_DIR "/README.md"};
  for (const char* folder : {"docs", "examples", "weights", "bench", "kernels", "tests", "tools"})
    for (std::string& file : files_below(folder, {".md", ".sh"})) files.push_back(std::move(file));
  return files;
}

// Commands of the shell go on after a backslash at the end of a line.
std::string joined_lines(std::string text) {
  for (size_t at = 0; (at = text.find("\\\n", at)) != std::string::npos;) text.replace(at, 2, " ");
  return text;
}

bool is_general(const std::string& flag) {
  static const std::set<std::string> names = {"help", "version", "man", "bash-completion"};
  return names.contains(flag);
}

bool is_flag_of(const Command& command, const std::string& flag) {
  return flag == "help" || flag == "config" || find_flag(command, flag) != nullptr;
}

bool is_flag_of_any(const std::string& flag) {
  return is_general(flag) ||
         std::ranges::any_of(commands(), [&](const Command& command) { return is_flag_of(command, flag); });
}

// {flag, what follows it} of "... --flag value ...".
std::vector<std::pair<std::string, std::string>> flags_in(const std::string& text) {
  static const std::regex pattern(R"re((?:^|[\s"(\[`])--([a-z][a-z0-9-]*)(?:[ =]([^\s"'`)\]|;]+))?)re");
  std::vector<std::pair<std::string, std::string>> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), pattern); match != std::sregex_iterator(); ++match)
    found.emplace_back((*match)[1], (*match)[2]);
  return found;
}

// Calls visit(command, the rest of the call) for each call of the program in a text.
template <class Visit>
int visit_calls(const std::string& text, Visit&& visit) {
  static const std::regex pattern(R"re(tercet\}?"? ([a-z]+)((?:[^\n|;>`&]|&[^&])*))re");
  int calls = 0;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), pattern); match != std::sregex_iterator(); ++match)
    if (const Command* command = find_command((*match)[1])) {
      visit(*command, (*match)[2].str());
      ++calls;
    }
  return calls;
}

TEST_CASE("every flag of a call of the program in documents and scripts exists, and so do literal values") {
  int calls = 0;
  for (const std::string& file : documents())
    calls += visit_calls(joined_lines(read_file(file)), [&](const Command& command, const std::string& rest) {
      for (const auto& [name, value] : flags_in(rest)) {
        const std::string call = fmt::format("{}: tercet {} --{} {}", file, command.name, name, value);
        CHECK_MESSAGE(is_flag_of(command, name), call);
        const Flag* flag = find_flag(command, name);
        if (flag == nullptr || flag->field.type != FieldType::text || value.empty() || flag->is_path()) continue;
        if (value.find('$') != std::string::npos || value.starts_with("-")) continue;
        Settings settings = command.defaults;
        CHECK_NOTHROW_MESSAGE(set_flag(settings, *flag, value, call), call);
      }
    });
  CHECK(calls >= 30);
}

TEST_CASE("every flag that a document names in passing exists") {
  static const std::regex pattern("`--([a-z][a-z0-9-]*)");
  int mentions = 0;
  for (const std::string& file : documents()) {
    if (!file.ends_with(".md")) continue;
    const std::string text = read_file(file);
    for (auto match = std::sregex_iterator(text.begin(), text.end(), pattern); match != std::sregex_iterator();
         ++match) {
      if ((*match)[1] == "cuda-graph-trace") continue;  // of Nsight Systems
      CHECK_MESSAGE(is_flag_of_any((*match)[1]), file << ": --" << (*match)[1].str());
      ++mentions;
    }
  }
  CHECK(mentions >= 5);
}

TEST_CASE("every flag that a message names exists") {
  static const std::regex literal(R"re("((?:[^"\\\n]|\\.)*)")re");
  int mentions = 0;
  for (const std::string& file : files_below("csrc", {".cpp", ".h"})) {
    if (file.ends_with("/app/manual.cpp")) continue;  // which is a program for bash
    const std::string text = read_file(file);
    for (auto match = std::sregex_iterator(text.begin(), text.end(), literal); match != std::sregex_iterator(); ++match)
      for (const auto& [name, value] : flags_in((*match)[1].str())) {
        CHECK_MESSAGE(is_flag_of_any(name), file << ": --" << name);
        ++mentions;
      }
  }
  CHECK(mentions >= 60);
}

// sft.toml, reward-350m.toml, ...: the command by the name of the file; pretrain.toml is for sft.
const Command* recipe_command(const std::string& file) {
  const std::string name = fs::path(file).filename().string();
  if (name.starts_with("pretrain")) return find_command("sft");
  return find_command(name.substr(0, name.find_first_of("-.")));
}

TEST_CASE("every key and value of a recipe is taken by its command") {
  int recipes = 0;
  for (const char* folder : {"examples", "weights"})
    for (const std::string& file : files_below(folder, {".toml"})) {
      CAPTURE(file);
      ++recipes;
      if (file.find("pipeline") != std::string::npos) {
        const PipelineFile pipeline(file);
        CHECK_FALSE(pipeline.sft_model().empty());
        const bool rule = !pipeline.reward_rule().empty();
        CHECK_NOTHROW(pipeline.invocation("sft", {"--model=m.h5", "--out=new"}));
        if (!rule) CHECK_NOTHROW(pipeline.invocation("reward", {"--model=m.h5", "--out=new"}));
        CHECK_NOTHROW(pipeline.invocation(
            "ppo",
            {"--actor=a.h5", rule ? "--reward-rule=" + pipeline.reward_rule() : "--reward-model=r.h5", "--out=new"}));
      }
      for (const TomlEntry& entry : parse_toml(read_file(file), file)) {
        if (entry.table == "model") continue;
        if (file.find("pipeline") != std::string::npos && entry.table.empty()) continue;  // PipelineFile has checked it
        const Command* command = entry.table.empty() ? recipe_command(file) : find_command(entry.table);
        REQUIRE(command != nullptr);
        const std::string where = fmt::format("{}:{}: {}", file, entry.line, entry.key);
        const Flag* flag = find_flag(*command, entry.key);
        REQUIRE_MESSAGE(flag != nullptr, where);
        Settings settings = command->defaults;
        CHECK_NOTHROW_MESSAGE(set_flag(settings, *flag, entry.value, where), where);
      }
    }
  CHECK(recipes >= 4);
}

// What the tests above rest on: they find flags, and they refuse some.
TEST_CASE("calls and flags are found where they stand") {
  CHECK(is_flag_of_any("ppo-epochs"));
  CHECK_FALSE(is_flag_of_any("ppo-epoch"));
  CHECK_FALSE(is_flag_of(*find_command("sft"), "rollouts"));
  std::string seen;
  CHECK(visit_calls(joined_lines("`build/tercet sft --lr 1e-4 \\\n --data \"$x\"` | tercet info m.h5 --json > --not"),
                    [&](const Command& command, const std::string& rest) {
                      seen += command.name;
                      for (const auto& [name, value] : flags_in(rest)) seen += " " + name + "=" + value;
                      seen += ";";
                    }) == 2);
  CHECK(seen == "sft lr=1e-4 data=;info json=;");
}

}  // namespace
}  // namespace tercet
