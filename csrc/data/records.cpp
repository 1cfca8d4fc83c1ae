#include "data/records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace tercet {
namespace {

constexpr std::array<std::string_view, 7> field_names = {"prompt",   "chosen", "rejected", "response",
                                                         "messages", "text",   "ids"};

Record of_form(Record::Form form) {
  Record record;
  record.form = form;
  return record;
}

// One record being parsed: its fields under the names that tercet gives them.
class Parser {
 public:
  Parser(const Json& json, const std::string& where, const RecordOptions& options)
      : json_(json), where_(where), options_(options) {}

  Record parse() const {
    if (!json_.is_object()) fail(fmt::format("expected an object but found {}", json_.type_name()));
    if (has("chosen") || has("rejected")) return parse_pair();
    if (has("response")) return parse_response();
    if (has("messages")) return parse_messages();
    if (has("prompt")) return parse_prompt();
    if (has("text")) return parse_text();
    if (options_.allow_ids && has("ids")) return parse_ids();
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : json_.as_object()) keys.push_back(key);
    fail(fmt::format("no field that tercet knows among \"{}\"", fmt::join(keys, "\", \"")),
         "expected prompt and response, prompt, chosen and rejected, messages, or text; name other fields with "
         "--fields");
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = "") const {
    fail_input(what, where_, remedy);
  }

  std::string name_of(const std::string& field) const {
    const auto renamed = options_.fields.find(field);
    return renamed == options_.fields.end() ? field : renamed->second;
  }

  bool has(const std::string& field) const { return json_.find(name_of(field)) != nullptr; }

  const Json& member(const std::string& field) const {
    const Json* value = json_.find(name_of(field));
    if (value == nullptr) fail(fmt::format("the field \"{}\" is missing", name_of(field)));
    return *value;
  }

  const std::string& text_of(const std::string& field) const {
    const Json& value = member(field);
    if (!value.is_string())
      fail(fmt::format("the field \"{}\" is {}, not a string", name_of(field), value.type_name()));
    return value.as_string();
  }

  std::string prompt() const {
    const std::string& text = text_of("prompt");
    if (options_.prompt_template == PromptTemplate::human_assistant && text.starts_with(human_mark))
      fail(fmt::format("the field \"{}\" is in the human-assistant form already", name_of("prompt")),
           "use --template none");
    return apply_template(options_.prompt_template, text);
  }

  Completion split_dialogue(const std::string& field) const {
    const std::string& dialogue = text_of(field);
    const size_t mark = dialogue.rfind(assistant_mark);
    if (mark == std::string::npos)
      fail(fmt::format("the dialogue \"{}\" has no \"\\n\\nAssistant:\"", name_of(field)),
           "give whole dialogues, or a prompt field too");
    const size_t answer = mark + assistant_mark.size();
    return {dialogue.substr(0, answer), answer_text(std::string_view(dialogue).substr(answer))};
  }

  std::string answer_to_prompt(const std::string& field) const {
    const std::string& text = text_of(field);
    if (text.starts_with(human_mark))
      fail(fmt::format("\"{}\" holds a whole dialogue although the record has a prompt", name_of(field)),
           "give answers beside a prompt, or dialogues without one");
    return answer_text(text);
  }

  Record parse_pair() const {
    Record record = of_form(Record::Form::pair);
    if (has("prompt")) {
      const std::string shared = prompt();
      record.completions = {{shared, answer_to_prompt("chosen")}, {shared, answer_to_prompt("rejected")}};
    } else {
      record.completions = {split_dialogue("chosen"), split_dialogue("rejected")};
    }
    return record;
  }

  Record parse_response() const {
    Record record = of_form(Record::Form::response);
    record.completions = {{prompt(), answer_to_prompt("response")}};
    return record;
  }

  Record parse_prompt() const {
    Record record = of_form(Record::Form::prompt);
    record.open_prompt = prompt();
    return record;
  }

  Record parse_text() const {
    Record record = of_form(Record::Form::text);
    record.text = text_of("text");
    return record;
  }

  const std::string& message_part(const Json& message, const char* part, size_t index) const {
    const Json* value = message.find(part);
    if (value == nullptr) fail(fmt::format("message {} has no \"{}\"", index + 1, part));
    if (!value->is_string())
      fail(fmt::format("the {} of message {} is {}, not a string", part, index + 1, value->type_name()));
    return value->as_string();
  }

  Record parse_messages() const {
    const Json& messages = member("messages");
    if (!messages.is_array())
      fail(fmt::format("the field \"{}\" is {}, not an array", name_of("messages"), messages.type_name()));
    if (messages.as_array().empty()) fail(fmt::format("the field \"{}\" is empty", name_of("messages")));
    Record record = of_form(Record::Form::messages);
    std::string history;
    for (size_t i = 0; i < messages.as_array().size(); ++i) {
      const Json& message = messages.as_array()[i];
      const std::string& role = message_part(message, "role", i);
      const std::string& content = message_part(message, "content", i);
      const std::string_view expected = i % 2 == 0 ? "user" : "assistant";
      if (role != expected)
        fail(fmt::format("message {} has the role \"{}\" where \"{}\" is expected", i + 1, role, expected),
             "roles alternate between user and assistant, and user begins");
      if (role == "user") {
        history += human_turn(content);
      } else {
        record.completions.push_back({history + std::string(assistant_mark), answer_text(content)});
        history += assistant_turn(content);
      }
    }
    if (messages.as_array().size() % 2 == 1) record.open_prompt = history.append(assistant_mark);
    return record;
  }

  Record parse_ids() const {
    const Json& ids = member("ids");
    if (!ids.is_array() || ids.as_array().empty())
      fail(fmt::format("the field \"{}\" is not an array of at least one id", name_of("ids")));
    Record record = of_form(Record::Form::ids);
    for (const Json& id : ids.as_array()) {
      if (!id.is_integer() || id.as_double() < 0 || id.as_double() > std::numeric_limits<int32_t>::max())
        fail(fmt::format("{} is not a token id", id.dump()));
      record.ids.push_back(static_cast<int32_t>(id.as_int()));
    }
    return record;
  }

  const Json& json_;
  const std::string& where_;
  const RecordOptions& options_;
};

}  // namespace

FieldNames parse_field_names(std::string_view fields) {
  FieldNames names;
  while (!fields.empty()) {
    const size_t comma = fields.find(',');
    const std::string_view item = fields.substr(0, comma);
    fields.remove_prefix(comma == std::string_view::npos ? fields.size() : comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals + 1 == item.size())
      fail_input(fmt::format("\"{}\" is not NAME=FIELD", item), "--fields",
                 "for example prompt=question,response=answer");
    const std::string_view name = item.substr(0, equals);
    if (std::find(field_names.begin(), field_names.end(), name) == field_names.end())
      fail_input(fmt::format("\"{}\" is not a field of tercet", name), "--fields",
                 fmt::format("use {}", fmt::join(field_names, ", ")));
    if (!names.emplace(name, item.substr(equals + 1)).second)
      fail_input(fmt::format("\"{}\" is named twice", name), "--fields");
  }
  return names;
}

std::string Record::split_key() const {
  if (!completions.empty()) return std::string(first_human_turn(completions.front().prompt));
  if (open_prompt) return std::string(first_human_turn(*open_prompt));
  if (form == Form::ids) return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
  return std::string(first_human_turn(text));
}

std::string_view form_name(Record::Form form) {
  switch (form) {
    case Record::Form::pair:
      return "chosen and rejected";
    case Record::Form::response:
      return "prompt and response";
    case Record::Form::prompt:
      return "prompt";
    case Record::Form::messages:
      return "messages";
    case Record::Form::text:
      return "text";
    case Record::Form::ids:
      return "ids";
  }
  return "";
}

Record parse_record(std::string_view line, const std::string& where, const RecordOptions& options) {
  const Json json = parse_json(line, where);
  return Parser(json, where, options).parse();
}

}  // namespace tercet
