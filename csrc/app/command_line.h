// From the arguments of the process to a command and its settings.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "app/flags.h"
#include "train/toml.h"

namespace tercet {

struct Invocation {
  const Command* command = nullptr;
  Settings settings;
  // Every flag of the command with its value, in the order of the table; not out, resume, overwrite and plain forms.
  Json settings_as_json;
};

// What the arguments (without the program's name) ask for: a command, or a text to print (help, version). Values come,
// weakest first, from the defaults, from the run under --resume, from --config FILE.toml and from the command line.
// Throws Error(Fault::input) that names the flag, or the file and line.
std::variant<Invocation, std::string> parse_command_line(const std::vector<std::string>& arguments);

// The same for a command whose settings stand in tables of one configuration file, weakest first, and in arguments,
// which win.
Invocation configure(const Command& command, const std::vector<std::vector<TomlEntry>>& tables, const std::string& path,
                     const std::vector<std::string>& arguments);

// --help of tercet and of one command.
std::string general_help();
std::string command_help(const Command& command);

// The whole program: parses, runs, prints errors on stderr, and returns the exit code.
int run_tercet(const std::vector<std::string>& arguments);

}  // namespace tercet
