// Whole files of real text against tests/golden/tokenizer_goldens.json, which says how it was made.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/shared_data.h"
#include "text/tokenizer.h"

using namespace tercet;

namespace {

std::string hash_of(const std::vector<int32_t>& ids) {
  return fmt::format("{:016x}", hash64(std::as_bytes(std::span<const int32_t>(ids))));
}

void append_strings(const Json& value, std::vector<std::string>& texts) {
  if (value.is_string()) texts.push_back(value.as_string());
  if (value.is_array())
    for (const Json& item : value.as_array()) append_strings(item, texts);
  if (value.is_object())
    for (const auto& [key, item] : value.as_object()) append_strings(item, texts);
}

std::vector<std::string> texts_of(const std::string& path) {
  const std::string content = read_file(path);
  if (path.find(".jsonl") == std::string::npos) return {content};
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    if (end > begin) append_strings(parse_json(std::string_view(content).substr(begin, end - begin), path), texts);
    begin = end + 1;
  }
  return texts;
}

// The WikiText-2 text of perplexity tables: lines as rows ("" when blank, else with their line feed) joined by "\n\n".
std::string perplexity_text(const std::string& raw) {
  std::string text;
  for (size_t begin = 0; begin < raw.size();) {
    const size_t end = raw.find('\n', begin);
    const std::string_view line = std::string_view(raw).substr(begin, end - begin);
    if (begin > 0) text += "\n\n";
    if (!strip_spaces(line).empty()) text.append(line) += '\n';
    begin = end + 1;
  }
  return text;
}

}  // namespace

TEST_CASE("real texts give the ids of Hugging Face's tokenizers") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  const std::string golden_path = TERCET_SOURCE_DIR "/tests/golden/tokenizer_goldens.json";
  const Json goldens = parse_json(read_file(golden_path), golden_path);
  for (const auto& entry : goldens.at("files").as_object()) {
    const std::string& name = entry.first;
    const Json& golden = entry.second;
    if (name.ends_with(".gz")) continue;  // tests/data reads that one, with the reader of gzip files
    TERCET_SHARED_DATA_OR_SKIP(path, name);
    const std::vector<std::string> texts = texts_of(path);
    std::vector<int32_t> ids;
    int64_t not_round = 0;
    for (const std::string& text : texts) {
      const std::vector<int32_t> more = tokenizer.encode(text);
      not_round += tokenizer.decode(more, false) != text ? 1 : 0;
      ids.insert(ids.end(), more.begin(), more.end());
    }
    INFO(name);
    CHECK(static_cast<int64_t>(texts.size()) == golden.at("texts").as_int());
    CHECK(static_cast<int64_t>(ids.size()) == golden.at("ids").as_int());
    CHECK(hash_of(ids) == golden.at("xxh3_64").as_string());
    CHECK(not_round == 0);
  }
}

TEST_CASE("the WikiText-2 perplexity text gives the 287,645 ids of published tables") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(path, "wikitext-2-raw-test.raw");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  const std::string golden_path = TERCET_SOURCE_DIR "/tests/golden/tokenizer_goldens.json";
  const Json golden = parse_json(read_file(golden_path), golden_path).at("perplexity_text");
  std::vector<int32_t> ids = {Tokenizer::end_id};
  const std::vector<int32_t> more = tokenizer.encode(perplexity_text(read_file(path)));
  ids.insert(ids.end(), more.begin(), more.end());
  CHECK(ids.size() == 287645);
  CHECK(std::vector<int32_t>(ids.begin(), ids.begin() + 11) ==
        std::vector<int32_t>{2, 50140, 5457, 1738, 163, 5156, 1334, 5457, 1437, 50140, 50140});
  CHECK(static_cast<int64_t>(ids.size()) == golden.at("ids").as_int());
  CHECK(hash_of(ids) == golden.at("xxh3_64").as_string());
}
