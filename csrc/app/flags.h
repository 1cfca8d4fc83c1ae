// The table of commands and the one table of flags, from which options, --help, the keys of configuration files and the
// recorded settings are made.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "app/commands.h"

namespace tercet {

enum class FieldType { boolean, int32, int64, uint64, real, text, text_list };

template <class T>
constexpr FieldType field_type() {
  if constexpr (std::is_same_v<T, bool>) return FieldType::boolean;
  if constexpr (std::is_same_v<T, int>) return FieldType::int32;
  if constexpr (std::is_same_v<T, int64_t>) return FieldType::int64;
  if constexpr (std::is_same_v<T, uint64_t>) return FieldType::uint64;
  if constexpr (std::is_same_v<T, double>) return FieldType::real;
  if constexpr (std::is_same_v<T, std::string>) return FieldType::text;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return FieldType::text_list;
}

// Where a flag's value is kept: a member of one or more settings structs.
struct Field {
  FieldType type = FieldType::text;
  // The member in these settings; nullptr when their command has no such flag.
  std::function<void*(Settings&)> address = [](Settings&) -> void* { return nullptr; };
};

// The field of members of one type.
template <class T, class... Struct>
Field field(T Struct::*... members) {
  const auto address = [members...](Settings& settings) {
    return std::visit(
        [&](auto& present) {
          void* found = nullptr;
          const auto look = [&]<class S>(T S::*member) {
            if constexpr (std::is_base_of_v<S, std::remove_reference_t<decltype(present)>>) found = &(present.*member);
          };
          (look(members), ...);
          return found;
        },
        settings);
  };
  return {field_type<T>(), address};
}

// What values are allowed, beyond their type.
struct FlagCheck {
  std::string expected;  // "a positive number"
  std::function<bool(const Json&)> holds;
};

// Headings of --help, in their order.
enum class FlagGroup { files, data, training, ppo, sampling, measuring, device, run };

struct Flag {
  std::string name = {};  // "max-length": --max-length on the command line, max-length in a configuration file
  FlagGroup group = FlagGroup::files;
  Field field = {};
  std::string value = {};  // what --help calls the value: "N", "FILE"; empty for a switch
  std::string help = {};
  std::string trl = {}, deepspeed_chat = {};  // the names there, where they differ
  FlagCheck check = {};
  bool required = false;
  bool positional = false;
  std::string default_words = {};  // what --help says for a default that is a code, such as 0 for "chosen"
  // The plain form, whose value this flag takes in ppo when it has none of its own.
  std::string plain = {};
  // Commands that refuse the flag, with the reason and the remedy.
  struct Refusal {
    std::string command, what, remedy;
  };
  std::vector<Refusal> refused = {};

  bool is_path() const { return value.starts_with("FILE") || value.starts_with("FOLDER") || value.starts_with("DATA"); }
};

struct Command {
  std::string name;
  std::string summary;  // one line
  std::string usage;    // what follows the name
  Settings defaults;
  std::function<int(const Settings&, const Json& settings_as_json)> run;
  std::string example = {};  // shown by --help
};

const std::vector<Command>& commands();
const std::vector<Flag>& flags();

// The command of that name, or nullptr.
const Command* find_command(const std::string& name);

// Whether the command takes the flag.
bool takes(const Command& command, const Flag& flag);

// Whether the flag is the plain form of per-model flags of this command: it sets them and is not recorded itself.
bool is_plain_form(const Command& command, const Flag& flag);

// The flag of that name which the command takes, or nullptr.
const Flag* find_flag(const Command& command, const std::string& name);

// The value of a flag in settings that have it, and setting it. set_flag takes integers for reals, and throws
// Error(Fault::input, `where`) when type or value are not what the flag allows.
Json get_flag(const Settings& settings, const Flag& flag);
void set_flag(Settings& settings, const Flag& flag, const Json& value, const std::string& where);

}  // namespace tercet
