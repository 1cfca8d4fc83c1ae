#include "train/tensorboard.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"

namespace tercet {
namespace {

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

const Json& goldens() {
  static const std::string path = TERCET_SOURCE_DIR "/tests/golden/tensorboard_goldens.json";
  static const Json json = parse_json(read_file(path), path);
  return json;
}

TEST_CASE("CRC-32C is that of its definition's test vectors") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43u);
  CHECK(crc32c("") == 0);
}

TEST_CASE("records are those of TensorBoard's own writer, byte for byte") {
  CHECK(hexadecimal(tensorboard_header(1.5e9)) == goldens().at("header").as_string());
  Json scalars = Json::object();
  scalars.set("step", 300).set("sft/loss", 0.5).set("eval/ppl", 150.25).set("grad_norm", 1e-3);
  scalars.set("note", "not a number").set("policy/stopped_early", true);
  CHECK(hexadecimal(tensorboard_record(1.5e9 + 0.25, 300, scalars)) == goldens().at("step_300").as_string());
}

TEST_CASE("a step without numbers has no record, and NaN is a number") {
  Json scalars = Json::object();
  scalars.set("step", 1).set("text", "x");
  CHECK(tensorboard_record(0, 1, scalars).empty());
  scalars.set("loss", NAN);
  CHECK_FALSE(tensorboard_record(0, 1, scalars).empty());
}

}  // namespace
}  // namespace tercet
