// A JSON value and its strict reader and writer (parsing by nlohmann-json, seen by json.cpp alone).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tercet {

// null, bool, integer, real, string, array or object. Objects keep the order of their keys.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  // Integers are those written without fraction or exponent.
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;

  // Throw Error(Fault::input) that names the expected and the present type.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  // The member of an object, or nullptr when absent or when this is not an object.
  const Json* find(std::string_view key) const;
  // The member of an object; throws Error(Fault::input) when absent.
  const Json& at(std::string_view key) const;
  // Sets a member, replacing one of that name; a null value becomes an object first.
  Json& set(std::string key, Json value);
  Json& push_back(Json value);

  // Compact when indent < 0. Reals are written so that they read back to the same double; non-finite reals are written
  // as the strings "nan", "inf", "-inf".
  std::string dump(int indent = -1) const;

  bool operator==(const Json&) const = default;

 private:
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int max_depth = 64;
  bool allow_duplicate_keys = false;
};

// Parses one JSON document. Throws Error(Fault::input, where = `where`) on a syntax error (with its byte), bad UTF-8, a
// lone surrogate, a duplicate key, too much depth or trailing bytes.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

}  // namespace tercet
