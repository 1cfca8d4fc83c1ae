#include "app/manual.h"

#include <algorithm>

#include "app/help.h"
#include "base/error.h"
#include "train/version.h"

namespace tercet {
namespace {

// Text as roff takes it literally.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string entry(const std::string& term, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(term), roff(text));
}

std::string command_pages(const Command& command) {
  std::string text = fmt::format(".SS {}\n{}.\n.PP\n.B tercet {} {}\n", roff(command.name), roff(command.summary),
                                 roff(command.name), roff(command.usage));
  for (const FlagGroup group : flag_groups())
    for (const Flag& flag : flags())
      if (flag.group == group && takes(command, flag)) text += entry(flag_usage(flag), flag_description(command, flag));
  if (!command.example.empty()) text += ".PP\nExample of\n.nf\n" + roff(command.example) + ".fi\n";
  return text;
}

// The words of "a|b|c"; none when one of them stands for something else, as FILE does.
std::string choices(const Flag& flag) {
  const auto literal = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '|'; };
  if (flag.value.empty() || !std::ranges::all_of(flag.value, literal)) return "";
  std::string words = flag.value;
  std::ranges::replace(words, '|', ' ');
  return words;
}

}  // namespace

std::string manual_page() {
  std::string text = fmt::format(
      ".TH TERCET 1 \"\" \"tercet {}\" \"User Commands\"\n.SH NAME\ntercet \\- trains OPT chat models with RLHF\n"
      ".SH SYNOPSIS\n.B tercet\n.I COMMAND\n[flags]\n.SH DESCRIPTION\n"
      "Supervised fine\\-tuning, a reward model and PPO from pretrained OPT weights. Any command takes its flags from\n"
      ".BR \"\\-\\-config FILE.toml\" ,\none\n.I name = value\na line; flags on the command line win.\n.SH COMMANDS\n",
      tercet_version());
  for (const Command& command : commands()) text += command_pages(command);
  return text +
         ".SH EXIT STATUS\n0 done, 1 the run failed, 2 arguments or inputs are wrong, 130 and 143 stopped by a "
         "signal after saving.\n";
}

std::string bash_completion() {
  std::string names, flag_cases, value_cases;
  for (const Command& command : commands()) {
    names += (names.empty() ? "" : " ") + command.name;
    std::string words = "--help";
    for (const Flag& flag : flags()) {
      if (!takes(command, flag)) continue;
      const std::string values = choices(flag);
      if (flag.positional && !values.empty()) words += " " + values;
      if (flag.positional) continue;
      words += " --" + flag.name;
      if (!values.empty())
        value_cases += fmt::format("    \"{} --{}\") words=\"{}\" ;;\n", command.name, flag.name, values);
    }
    if (find_flag(command, "config") == nullptr) words += " --config";
    flag_cases += fmt::format("      {}) words=\"{}\" ;;\n", command.name, words);
  }
  return fmt::format(R"(# Completion of tercet's commands, flags and values for bash.
_tercet() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$word"))
    return
  fi
  case "$command $before" in
{}    *)
      case "$command" in
{}      esac
      case "$word $before" in
        -*|*" $command") ;;
        *) words= ;;  # a value: files, by the default of bash
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _tercet tercet
)",
                     names, value_cases, flag_cases);
}

}  // namespace tercet
