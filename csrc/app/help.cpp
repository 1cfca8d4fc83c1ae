#include "app/help.h"

#include <algorithm>

#include "app/command_line.h"
#include "base/error.h"

namespace tercet {
namespace {

constexpr size_t kWidth = 110;
constexpr size_t kIndent = 34;

// The text in lines of at most kWidth, each after the first indented by kIndent.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t column = kIndent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (column + word.size() + 1 > kWidth) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string line(const std::string& left, const std::string& text) {
  const bool fits = left.size() + 4 <= kIndent;
  return fmt::format("  {}{}{}\n", left,
                     fits ? std::string(kIndent - 2 - left.size(), ' ') : "\n" + std::string(kIndent, ' '),
                     wrapped(text));
}

std::string default_text(const Command& command, const Flag& flag) {
  if (!flag.default_words.empty()) return flag.default_words;
  const Json value = get_flag(command.defaults, flag);
  if (value.is_bool()) return value.as_bool() ? "on" : "off";
  if (value.is_string()) return value.as_string();
  return value.is_integer() ? value.dump() : fmt::format("{}", value.as_double());
}

std::string names_elsewhere(const Flag& flag) {
  std::string text;
  const bool same = flag.trl == flag.deepspeed_chat;
  if (!flag.trl.empty()) text += (same ? "TRL, DeepSpeed-Chat: " : "TRL: ") + flag.trl;
  if (!flag.deepspeed_chat.empty() && !same)
    text += (text.empty() ? "" : "; ") + ("DeepSpeed-Chat: " + flag.deepspeed_chat);
  return text.empty() ? "" : " (" + text + ")";
}

}  // namespace

const std::vector<FlagGroup>& flag_groups() {
  static const std::vector<FlagGroup> groups = {FlagGroup::files,  FlagGroup::data,     FlagGroup::training,
                                                FlagGroup::ppo,    FlagGroup::sampling, FlagGroup::measuring,
                                                FlagGroup::device, FlagGroup::run};
  return groups;
}

const char* heading(FlagGroup group) {
  switch (group) {
    case FlagGroup::files:
      return "Files";
    case FlagGroup::data:
      return "Data";
    case FlagGroup::training:
      return "Training";
    case FlagGroup::ppo:
      return "PPO";
    case FlagGroup::sampling:
      return "Sampling";
    case FlagGroup::measuring:
      return "Measuring";
    case FlagGroup::device:
      return "Device";
    case FlagGroup::run:
      return "Run";
  }
  return "";
}

std::string flag_usage(const Flag& flag) {
  return (flag.positional ? "" : "--" + flag.name + (flag.value.empty() ? "" : " ")) + flag.value;
}

std::string flag_description(const Command& command, const Flag& flag) {
  std::string text = flag.help;
  if (is_plain_form(command, flag)) {
    text = "Sets";
    for (const Flag& other : flags())
      if (other.plain == flag.name) text += (text == "Sets" ? " --" : " and --") + other.name;
    text += ".";
  } else if (flag.required) {
    text += " Required.";
  } else if (!flag.value.empty()) {
    text += " Default: " + default_text(command, flag) + ".";
  }
  return text + names_elsewhere(flag);
}

std::string general_help() {
  std::string text =
      "tercet trains OPT chat models with RLHF: supervised fine-tuning, a reward model, PPO.\n\n"
      "usage: tercet COMMAND [flags]\n\ncommands\n";
  for (const Command& command : commands()) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  return text +
         "\n`tercet COMMAND --help` lists a command's flags. `--config FILE.toml` takes any of them as `name = "
         "value`;\n"
         "flags on the command line win.\n\n"
         "exit codes: 0 done, 1 the run failed, 2 arguments or inputs are wrong, 130 and 143 stopped by a signal "
         "after\n"
         "saving.\n";
}

std::string command_help(const Command& command) {
  std::string text = fmt::format("tercet {}: {}\n\nusage: tercet {} {} [flags]\n", command.name, command.summary,
                                 command.name, command.usage);
  for (const FlagGroup group : flag_groups()) {
    std::string lines;
    for (const Flag& flag : flags())
      if (flag.group == group && takes(command, flag)) lines += line(flag_usage(flag), flag_description(command, flag));
    if (!lines.empty()) text += fmt::format("\n{}\n{}", heading(group), lines);
  }
  text += "\n";
  if (find_flag(command, "config") == nullptr)
    text += line("--config FILE.toml", "Flags as `name = value`, one a line; those on the command line win.");
  text += line("--help", "This text.");
  return command.example.empty() ? text : text + "\nExample of " + command.example;
}

}  // namespace tercet
