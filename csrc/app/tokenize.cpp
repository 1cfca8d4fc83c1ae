#include <iostream>

#include "app/commands.h"
#include "base/error.h"
#include "model/model_file.h"

namespace tercet {
namespace {

Json encode(const Tokenizer& tokenizer, const Json& record, bool no_bos) {
  Json ids = Json::array();
  if (!no_bos) ids.push_back(int64_t{Tokenizer::end_id});
  for (const int32_t id : tokenizer.encode(record.at("text").as_string())) ids.push_back(int64_t{id});
  Json out = Json::object();
  out.set("ids", std::move(ids));
  return out;
}

Json decode(const Tokenizer& tokenizer, const Json& record) {
  std::vector<int32_t> ids;
  for (const Json& item : record.at("ids").as_array()) {
    const int64_t id = item.as_int();
    if (id < 0 || id >= tokenizer.size())
      fail_input(fmt::format("{} is not one of the tokenizer's {} ids", id, tokenizer.size()));
    ids.push_back(static_cast<int32_t>(id));
  }
  Json out = Json::object();
  out.set("text", tokenizer.decode_utf8(ids));
  return out;
}

// Messages of a record's contents, with the line they are about.
Json convert_line(const std::string& line, int64_t number, const Tokenizer& tokenizer,
                  const TokenizeSettings& settings) {
  const std::string where = fmt::format("stdin:{}", number);
  const Json record = parse_json(line, where);
  try {
    return settings.decode ? decode(tokenizer, record) : encode(tokenizer, record, settings.no_bos);
  } catch (const Error& error) {
    fail_input(error.what(), where,
               settings.decode ? R"(write {"ids": [...]}, one a line)" : R"(write {"text": "..."}, one a line)");
  }
}

}  // namespace

int run_tokenize(const TokenizeSettings& settings) {
  const Tokenizer tokenizer = read_model_info(settings.model).tokenizer(settings.model);
  std::ios::sync_with_stdio(false);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::cout << convert_line(line, number, tokenizer, settings).dump() << '\n';
  }
  std::cout.flush();
  if (!std::cout) fail_run("cannot write to stdout");
  return 0;
}

}  // namespace tercet
