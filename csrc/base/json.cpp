#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace tercet {
namespace {

[[noreturn]] void wrong_type(const char* expected, const Json& value) {
  fail_input(fmt::format("expected {} but found {}", expected, value.type_name()));
}

// Builds a Json from nlohmann's events.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::string& where, const JsonLimits& limits) : where_(where), limits_(limits) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return add(Json(static_cast<int64_t>(value)));
    return add(Json(uint64_t{value}));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) fail_input(fmt::format("the number {} is out of range", text), where_);
    return add(Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!limits_.allow_duplicate_keys && !keys_.back().insert(name).second)
      fail_input(fmt::format("the key \"{}\" appears twice", name), where_);
    pending_keys_.back() = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const size_t end_of_tag = reason.find("] "); end_of_tag != std::string::npos) reason.erase(0, end_of_tag + 2);
    fail_input(fmt::format("not valid JSON at byte {} ({})", position, reason), where_);
  }

  Json take() { return std::move(root_); }

 private:
  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().is_array()) {
      stack_.back().push_back(std::move(value));
    } else {
      stack_.back().as_object().emplace_back(std::move(pending_keys_.back()), std::move(value));
    }
    return true;
  }

  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth)
      fail_input(fmt::format("JSON nested deeper than {} levels", limits_.max_depth), where_);
    stack_.push_back(std::move(container));
    keys_.emplace_back();
    pending_keys_.emplace_back();
    return true;
  }

  bool close() {
    Json done = std::move(stack_.back());
    stack_.pop_back();
    keys_.pop_back();
    pending_keys_.pop_back();
    return add(std::move(done));
  }

  const std::string& where_;
  JsonLimits limits_;
  Json root_;
  std::vector<Json> stack_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::vector<std::string> pending_keys_;
};

void write_string(std::string& out, const std::string& text) {
  out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write_real(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"nan\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    out += text;
  }
}

void write_break(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent * depth), ' ');
}

void write(std::string& out, const Json& value, int indent, int depth) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_string()) {
    write_string(out, value.as_string());
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& item : value.as_array()) {
      if (!first) out += indent < 0 ? "," : ", ";
      first = false;
      write(out, item, -1, depth + 1);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.as_object()) {
      if (!first) out += ',';
      first = false;
      write_break(out, indent, depth + 1);
      write_string(out, key);
      out += indent < 0 ? ":" : ": ";
      write(out, item, indent, depth + 1);
    }
    if (!first) write_break(out, indent, depth);
    out += '}';
  } else if (!value.is_integer()) {
    write_real(out, value.as_double());
  } else if (value.as_double() > 9e18) {
    out += fmt::format("{}", value.as_uint());
  } else {
    out += fmt::format("{}", value.as_int());
  }
}

}  // namespace

const char* Json::type_name() const {
  static constexpr const char* names[] = {"null",     "a boolean", "an integer", "an integer",
                                          "a number", "a string",  "an array",   "an object"};
  return names[value_.index()];
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  wrong_type("a boolean", *this);
}

int64_t Json::as_int() const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return *value;
  if (const uint64_t* value = std::get_if<uint64_t>(&value_); value != nullptr && std::in_range<int64_t>(*value))
    return static_cast<int64_t>(*value);
  wrong_type("an integer within 64 bits", *this);
}

uint64_t Json::as_uint() const {
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_); value != nullptr && *value >= 0)
    return static_cast<uint64_t>(*value);
  wrong_type("a non-negative integer", *this);
}

double Json::as_double() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  wrong_type("a number", *this);
}

const std::string& Json::as_string() const {
  if (const std::string* value = std::get_if<std::string>(&value_)) return *value;
  wrong_type("a string", *this);
}

const Json::Array& Json::as_array() const {
  if (const Array* value = std::get_if<Array>(&value_)) return *value;
  wrong_type("an array", *this);
}

const Json::Object& Json::as_object() const {
  if (const Object* value = std::get_if<Object>(&value_)) return *value;
  wrong_type("an object", *this);
}

Json::Array& Json::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }

Json::Object& Json::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object())
    if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  fail_input(fmt::format("the key \"{}\" is missing", key));
}

Json& Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object{};
  for (auto& [name, present] : as_object())
    if (name == key) {
      present = std::move(value);
      return *this;
    }
  as_object().emplace_back(std::move(key), std::move(value));
  return *this;
}

Json& Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, *this, indent, 0);
  return out;
}

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  // nlohmann-json takes a null byte for the end of the text.
  if (const size_t null = text.find('\0'); null != std::string_view::npos)
    fail_input(fmt::format("not valid JSON at byte {} (a null byte)", null + 1), where);
  Builder builder(where, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace tercet
