#include <doctest/doctest.h>

#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace tercet {
namespace {

void check_refused(std::string_view text, const std::string& fragment) {
  try {
    parse_json(text, "file.json");
    FAIL("accepted: ", text);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK_MESSAGE(std::string(error.what()).find(fragment) != std::string::npos, error.what());
    CHECK(std::string(error.what()).starts_with("file.json"));
  }
}

}  // namespace

TEST_CASE("a JSON document reads back as it was written") {
  const std::string text = R"({"a":[1,-2,3.5,true,null],"b":{"c":"x\n\u00e9\ud83e\uddd1"},"big":18446744073709551615})";
  const Json json = parse_json(text, "");
  CHECK(json.at("a").as_array()[1].as_int() == -2);
  CHECK(json.at("b").at("c").as_string() == "x\n\xc3\xa9\xf0\x9f\xa7\x91");
  CHECK(json.at("big").as_uint() == 18446744073709551615u);
  CHECK(parse_json(json.dump(), "") == json);
  CHECK(parse_json(json.dump(2), "") == json);
}

TEST_CASE("reals are written so that they read back to the same double") {
  for (const double value : {0.1, 1.0, -1e-300, 1e22, 5e-324, std::numeric_limits<double>::max()})
    CHECK(parse_json(Json(value).dump(), "").as_double() == value);
  CHECK(Json(2.0).dump() == "2.0");
  CHECK(Json(std::numeric_limits<double>::quiet_NaN()).dump() == "\"nan\"");
  CHECK(Json(-std::numeric_limits<double>::infinity()).dump() == "\"-inf\"");
}

TEST_CASE("bad JSON is refused with the place and the reason") {
  check_refused("{\"a\":1", "not valid JSON at byte");
  check_refused("{\"a\":1} x", "not valid JSON at byte");
  check_refused("{\"a\":1,\"a\":2}", "\"a\" appears twice");
  check_refused("\"\\ud800\"", "not valid JSON");
  check_refused("\"\xff\"", "not valid JSON");
  check_refused("1e999", "1e999");
  check_refused(std::string(100, '[') + std::string(100, ']'), "deeper than 64");
  check_refused("", "not valid JSON");
}

TEST_CASE("a value of another type names both types") {
  const Json json = parse_json("{\"n\": \"text\"}", "");
  CHECK_THROWS_WITH(json.at("n").as_int(), "expected an integer within 64 bits but found a string");
  CHECK_THROWS_WITH(json.at("m"), "the key \"m\" is missing");
  CHECK_THROWS_WITH(Json(-1).as_uint(), "expected a non-negative integer but found an integer");
  CHECK(json.find("m") == nullptr);
}

TEST_CASE("set replaces a member and keeps the order of the others") {
  Json json;
  json.set("a", 1).set("b", 2).set("a", 3);
  CHECK(json.dump() == R"({"a":3,"b":2})");
}

}  // namespace tercet
