#include "app/flags.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tercet {
namespace {

template <class T>
const T& value_of(const Settings& settings, const Flag& flag) {
  return *static_cast<const T*>(flag.field.address(const_cast<Settings&>(settings)));
}

Json list_of(const std::vector<std::string>& items) {
  Json list = Json::array();
  for (const std::string& item : items) list.push_back(item);
  return list;
}

const char* type_words(FieldType type) {
  switch (type) {
    case FieldType::boolean:
      return "on or off";
    case FieldType::int32:
    case FieldType::int64:
      return "an integer";
    case FieldType::uint64:
      return "a non-negative integer";
    case FieldType::real:
      return "a number";
    case FieldType::text:
      return "a text";
    case FieldType::text_list:
      return "a text or a list of texts";
  }
  return "";
}

bool has_type(const Json& value, FieldType type) {
  switch (type) {
    case FieldType::boolean:
      return value.is_bool();
    case FieldType::int32:
      return value.is_integer() && std::abs(value.as_double()) <= std::numeric_limits<int>::max();
    case FieldType::int64:
      return value.is_integer() && value.as_double() < 9.2e18;
    case FieldType::uint64:
      return value.is_integer() && value.as_double() >= 0;
    case FieldType::real:
      return value.is_number() && std::isfinite(value.as_double());
    case FieldType::text:
      return value.is_string();
    case FieldType::text_list:
      return value.is_string() || (value.is_array() && std::ranges::all_of(value.as_array(), [](const Json& item) {
                                     return item.is_string();
                                   }));
  }
  return false;
}

std::vector<std::string> texts_of(const Json& value) {
  if (value.is_string()) return {value.as_string()};
  std::vector<std::string> texts;
  for (const Json& item : value.as_array()) texts.push_back(item.as_string());
  return texts;
}

}  // namespace

const Command* find_command(const std::string& name) {
  for (const Command& command : commands())
    if (command.name == name) return &command;
  return nullptr;
}

bool takes(const Command& command, const Flag& flag) {
  const bool refused =
      std::ranges::any_of(flag.refused, [&](const Flag::Refusal& refusal) { return refusal.command == command.name; });
  return !refused && flag.field.address(const_cast<Settings&>(command.defaults)) != nullptr;
}

bool is_plain_form(const Command& command, const Flag& flag) {
  return std::ranges::any_of(flags(),
                             [&](const Flag& other) { return other.plain == flag.name && takes(command, other); });
}

const Flag* find_flag(const Command& command, const std::string& name) {
  for (const Flag& flag : flags())
    if (flag.name == name && takes(command, flag)) return &flag;
  return nullptr;
}

Json get_flag(const Settings& settings, const Flag& flag) {
  switch (flag.field.type) {
    case FieldType::boolean:
      return value_of<bool>(settings, flag);
    case FieldType::int32:
      return value_of<int>(settings, flag);
    case FieldType::int64:
      return value_of<int64_t>(settings, flag);
    case FieldType::uint64: {
      const uint64_t value = value_of<uint64_t>(settings, flag);
      // As the JSON reader has it, so that a value that was written and read again is equal.
      return value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? Json(static_cast<int64_t>(value))
                                                                                 : Json(value);
    }
    case FieldType::real:
      return value_of<double>(settings, flag);
    case FieldType::text:
      return value_of<std::string>(settings, flag);
    case FieldType::text_list:
      return list_of(value_of<std::vector<std::string>>(settings, flag));
  }
  return {};
}

void set_flag(Settings& settings, const Flag& flag, const Json& value, const std::string& where) {
  if (!has_type(value, flag.field.type))
    fail_input(fmt::format("{} is not allowed", value.dump()), where,
               fmt::format("expected {}", flag.check.holds ? flag.check.expected : type_words(flag.field.type)));
  if (flag.check.holds && !flag.check.holds(value))
    fail_input(fmt::format("{} is not allowed", value.dump()), where, "expected " + flag.check.expected);
  void* target = flag.field.address(settings);
  TERCET_REQUIRE(target != nullptr, "--{} is set on settings that do not have it", flag.name);
  switch (flag.field.type) {
    case FieldType::boolean:
      *static_cast<bool*>(target) = value.as_bool();
      break;
    case FieldType::int32:
      *static_cast<int*>(target) = static_cast<int>(value.as_int());
      break;
    case FieldType::int64:
      *static_cast<int64_t*>(target) = value.as_int();
      break;
    case FieldType::uint64:
      *static_cast<uint64_t*>(target) = value.as_uint();
      break;
    case FieldType::real:
      *static_cast<double*>(target) = value.as_double();
      break;
    case FieldType::text:
      *static_cast<std::string*>(target) = value.as_string();
      break;
    case FieldType::text_list:
      *static_cast<std::vector<std::string>*>(target) = texts_of(value);
      break;
  }
}

}  // namespace tercet
