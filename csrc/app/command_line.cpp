#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <map>

#include "app/checks.h"
#include "app/manual.h"
#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "shard/communicator.h"
#include "train/run_folder.h"
#include "train/toml.h"
#include "train/version.h"

namespace tercet {
namespace {

// Values that one source gives: the command line, a configuration file, a run.
struct GivenValue {
  Json value;
  std::string where;
};
using Layer = std::map<const Flag*, GivenValue>;

template <class T>
bool parse_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// A word of the command line as the type of the flag; words that do not fit stay texts, for set_flag to refuse.
Json typed(const Flag& flag, const std::string& text) {
  switch (flag.field.type) {
    case FieldType::boolean:
      if (text == "on" || text == "true" || text == "yes") return true;
      if (text == "off" || text == "false" || text == "no") return false;
      return text;
    case FieldType::int32:
    case FieldType::int64:
    case FieldType::uint64:
    case FieldType::real:
      if (int64_t integer = 0; parse_number(text, integer)) return integer;
      if (uint64_t integer = 0; parse_number(text, integer)) return integer;
      if (double real = 0; parse_number(text, real)) return real;
      return text;
    case FieldType::text:
    case FieldType::text_list:
      return text;
  }
  return text;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string with_dashes(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

bool is_name_elsewhere(const Flag& flag, const std::string& name) {
  for (const std::string& names : {flag.trl, flag.deepspeed_chat})
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find(", ", begin), names.size());
      if (with_dashes(names.substr(begin, end - begin)) == name) return true;
      begin = end + 2;
    }
  return false;
}

// Why the command does not take the flag called `name`, and what to do.
[[noreturn]] void refuse_flag(const Command& command, const std::string& name, const std::string& where) {
  const std::string dashed = with_dashes(name);
  for (const Flag& flag : flags())
    for (const Flag::Refusal& refusal : flag.refused)
      if (flag.name == dashed && refusal.command == command.name) fail_input(refusal.what, where, refusal.remedy);
  if (find_flag(command, dashed) != nullptr)
    fail_input("flags are written with '-', not '_'", where, "write " + dashed);
  for (const Flag& flag : flags())
    if (takes(command, flag) && is_name_elsewhere(flag, dashed))
      fail_input("unknown flag", where, fmt::format("it is called --{} here", flag.name));
  std::string owners;
  for (const Command& other : commands())
    if (find_flag(other, dashed) != nullptr) owners += (owners.empty() ? "" : ", ") + other.name;
  if (!owners.empty())
    fail_input(fmt::format("{} has no such flag; it belongs to {}", command.name, owners), where,
               fmt::format("see `tercet {} --help`", command.name));
  const Flag* nearest = nullptr;
  size_t distance = 3;
  for (const Flag& flag : flags())
    if (takes(command, flag) && edit_distance(flag.name, dashed) < distance)
      distance = edit_distance((nearest = &flag)->name, dashed);
  fail_input("unknown flag", where,
             nearest != nullptr ? fmt::format("did you mean --{}?", nearest->name)
                                : fmt::format("see `tercet {} --help`", command.name));
}

const Flag& flag_of(const Command& command, const std::string& name, const std::string& where) {
  const Flag* flag = find_flag(command, name);
  if (flag == nullptr) refuse_flag(command, name, where);
  return *flag;
}

// The command line as CLI11 splits it: words by flag.
class ArgumentParser {
 public:
  explicit ArgumentParser(const Command& command) : command_(command) {
    app_.set_help_flag();
    app_.allow_extras();
    help_ = app_.add_flag("--help,-h");
    if (find_flag(command, "config") == nullptr) config_ = app_.add_option("--config");
    for (const Flag& flag : flags())
      if (takes(command, flag)) add(flag);
  }

  void parse(std::vector<std::string> arguments) {
    std::ranges::reverse(arguments);
    try {
      app_.parse(arguments);
    } catch (const CLI::ParseError& error) {
      fail_input(error.what(), "", fmt::format("see `tercet {} --help`", command_.name));
    }
    if (help_asked()) return;
    for (const std::string& extra : app_.remaining()) refuse_extra(extra);
  }

  bool help_asked() const { return help_->count() > 0; }
  std::string config_file() const { return config_ != nullptr && config_->count() > 0 ? config_->results().at(0) : ""; }

  Layer layer() const {
    Layer given;
    for (const auto& [flag, option] : options_) {
      if (option->count() == 0) continue;
      const std::string where = flag->positional ? flag->value : "--" + flag->name;
      const std::vector<std::string> words = option->results();
      for (const std::string& word : words) require_value(*flag, word, where);
      given[flag] = {flag->field.type == FieldType::text_list ? list(words) : typed(*flag, words.back()), where};
    }
    return given;
  }

 private:
  void add(const Flag& flag) {
    const std::string name = flag.positional ? flag.name : "--" + flag.name;
    CLI::Option* option = flag.value.empty() ? app_.add_flag(name) : app_.add_option(name);
    if (flag.field.type == FieldType::text_list)
      option->expected(1, 100'000)
          ->allow_extra_args(flag.positional)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    options_.emplace_back(&flag, option);
  }

  [[noreturn]] void refuse_extra(const std::string& word) const {
    if (!word.starts_with("-"))
      fail_input(fmt::format("unexpected argument \"{}\"", word), "",
                 fmt::format("see `tercet {} --help`", command_.name));
    const std::string written = word.substr(0, word.find('='));
    refuse_flag(command_, written.substr(std::min(written.find_first_not_of('-'), written.size())), written);
  }

  // `--model --data F` forgot a value; a text that starts so is written --prompt=--text.
  void require_value(const Flag& flag, const std::string& word, const std::string& where) const {
    if (word.starts_with("--") && !flag.value.starts_with("TEXT"))
      fail_input(fmt::format("it has no value before {}", word), where, "give one");
  }

  static Json list(const std::vector<std::string>& words) {
    Json items = Json::array();
    for (const std::string& word : words) items.push_back(word);
    return items;
  }

  const Command& command_;
  CLI::App app_;
  CLI::Option* help_ = nullptr;
  CLI::Option* config_ = nullptr;
  std::vector<std::pair<const Flag*, CLI::Option*>> options_;
};

Layer config_layer(const Command& command, const std::vector<TomlEntry>& entries, const std::string& path) {
  Layer given;
  for (const TomlEntry& entry : entries) {
    const std::string where = fmt::format("{}:{}: {}", path, entry.line, entry.key);
    const Flag& flag = flag_of(command, entry.key, where);
    Json value = entry.value;
    if (flag.field.type == FieldType::boolean && value.is_string()) value = typed(flag, value.as_string());
    given[&flag] = {std::move(value), where};
  }
  return given;
}

// The settings of a configuration file; the record of a run's config.toml is left out.
std::vector<TomlEntry> config_entries(const std::string& path) {
  std::vector<TomlEntry> entries;
  for (TomlEntry& entry : parse_toml(read_file(path), path)) {
    if (is_run_record_table(entry.table)) continue;
    if (!entry.table.empty())
      fail_input(fmt::format("the table [{}] is not known", entry.table),
                 fmt::format("{}:{}: {}", path, entry.line, entry.key), "write flags before the first table");
    entries.push_back(std::move(entry));
  }
  return entries;
}

Layer run_layer(const Command& command, const std::string& folder) {
  Layer given;
  const RunRecord record = read_run_record(folder);
  if (record.step != command.name)
    fail_input(fmt::format("the folder holds a run of {}", record.step), folder, "resume it with that command");
  for (const auto& [name, value] : record.settings.as_object()) {
    const std::string where = fmt::format("{}/config.toml: {}", folder, name);
    given[&flag_of(command, name, where)] = {value, where};
  }
  return given;
}

// Gives per-model flags the value of their plain form.
void spread_plain_forms(const Command& command, Layer& layer) {
  for (const Flag& flag : flags()) {
    if (flag.plain.empty() || !takes(command, flag) || layer.contains(&flag)) continue;
    const auto plain = layer.find(find_flag(command, flag.plain));
    if (plain != layer.end()) layer[&flag] = plain->second;
  }
}

void apply_layer(Settings& settings, const Layer& layer) {
  for (const auto& [flag, given] : layer) set_flag(settings, *flag, given.value, given.where);
}

void require_flags(const Command& command, const Settings& settings) {
  std::string missing;
  for (const Flag& flag : flags()) {
    if (!takes(command, flag) || !flag.required) continue;
    const Json value = get_flag(settings, flag);
    if (value != Json("") && value != Json::array()) continue;
    missing += (missing.empty() ? "" : ", ") + (flag.positional ? flag.value : "--" + flag.name);
  }
  if (!missing.empty())
    fail_input(fmt::format("{} needs {}", command.name, missing), "",
               fmt::format("usage: tercet {} {}", command.name, command.usage));
}

// --steps above 0 and --epochs exclude each other, and what a stronger source says replaces both.
void settle_length(const Command& command, Layer& layer) {
  const Flag* steps = find_flag(command, "steps");
  const auto epochs = layer.find(find_flag(command, "epochs"));
  if (steps == nullptr || epochs == layer.end()) return;
  const auto [given, added] = layer.try_emplace(steps, GivenValue{0, epochs->second.where});
  if (given->second.value != Json(0)) fail_input("--steps and --epochs both say when to stop", "", "give one of them");
}

Json recorded(const Command& command, const Settings& settings) {
  Json json = Json::object();
  const Flag* steps = find_flag(command, "steps");
  const bool by_steps = steps != nullptr && get_flag(settings, *steps) != Json(0);
  for (const Flag& flag : flags()) {
    if (!takes(command, flag) || is_plain_form(command, flag)) continue;
    if (flag.name == "out" || flag.name == "resume" || flag.name == "overwrite") continue;
    if (flag.name == (by_steps ? "epochs" : "steps")) continue;
    json.set(flag.name, get_flag(settings, flag));
  }
  return json;
}

bool resumes(const Settings& settings) {
  return std::visit(
      [](const auto& present) {
        if constexpr (requires { present.resume; }) return present.resume;
        return false;
      },
      settings);
}

// Layers come weakest first.
Invocation combine(const Command& command, std::vector<Layer> layers) {
  Invocation invocation{.command = &command, .settings = command.defaults, .settings_as_json = {}};
  const auto apply_all = [&] {
    for (const Layer& layer : layers) apply_layer(invocation.settings, layer);
  };
  for (Layer& layer : layers) {
    settle_length(command, layer);
    spread_plain_forms(command, layer);
  }
  apply_all();
  if (resumes(invocation.settings)) {
    const std::string folder = get_flag(invocation.settings, *find_flag(command, "out")).as_string();
    if (folder.empty()) fail_input("--resume needs --out", "", "name the run's folder");
    apply_layer(invocation.settings, run_layer(command, folder));
    apply_all();
  }
  require_flags(command, invocation.settings);
  check_settings(command, invocation.settings);
  invocation.settings_as_json = recorded(command, invocation.settings);
  return invocation;
}

std::variant<Invocation, std::string> parse_command(const Command& command, const std::vector<std::string>& arguments) {
  ArgumentParser parser(command);
  parser.parse(arguments);
  if (parser.help_asked()) return command_help(command);
  std::vector<Layer> layers;
  if (const std::string file = parser.config_file(); !file.empty())
    layers.push_back(config_layer(command, config_entries(file), file));
  layers.push_back(parser.layer());
  return combine(command, std::move(layers));
}

}  // namespace

std::variant<Invocation, std::string> parse_command_line(const std::vector<std::string>& arguments) {
  if (arguments.empty()) fail_input("no command is given", "", "`tercet --help` lists them");
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") return general_help();
  if (name == "--man") return manual_page();
  if (name == "--bash-completion") return bash_completion();
  if (name == "--version") return fmt::format("tercet {}\n", tercet_version());
  if (const Command* command = find_command(name))
    return parse_command(*command, {arguments.begin() + 1, arguments.end()});
  fail_input(fmt::format("unknown command \"{}\"", name), "", "`tercet --help` lists them");
}

Invocation configure(const Command& command, const std::vector<std::vector<TomlEntry>>& tables, const std::string& path,
                     const std::vector<std::string>& arguments) {
  ArgumentParser parser(command);
  parser.parse(arguments);
  std::vector<Layer> layers;
  for (const std::vector<TomlEntry>& entries : tables) layers.push_back(config_layer(command, entries, path));
  layers.push_back(parser.layer());
  return combine(command, std::move(layers));
}

int run_tercet(const std::vector<std::string>& arguments) {
  // A write past the file size limit then fails like one to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const auto parsed = parse_command_line(arguments);
    if (const auto* text = std::get_if<std::string>(&parsed)) {
      fmt::print("{}", *text);
      return 0;
    }
    require_single_process();
    const Invocation& invocation = std::get<Invocation>(parsed);
    const int exit_code = invocation.command->run(invocation.settings, invocation.settings_as_json);
    if (std::fflush(stdout) != 0) fail_errno("cannot write the results", "stdout");
    return exit_code;
  } catch (const Interrupted& stop) {
    log::write_line("tercet: stopped by a signal; nothing is left of the unfinished output");
    return 128 + stop.signal();
  } catch (const Error& error) {
    log::write_line(fmt::format("tercet: error: {}", error.what()));
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    log::write_line("tercet: error: out of memory; use a smaller model, batch or --micro-batch-tokens");
  } catch (const std::exception& error) {
    log::write_line(fmt::format("tercet: error: {}", error.what()));
  }
  return 1;
}

}  // namespace tercet
