// How `make test-real` measures, on a small model and on WikiText-2.
#include <doctest/doctest.h>

#include "app/program.h"
#include "real_weights/protocol.h"
#include "text/shared_data.h"

namespace tercet {
namespace {

const std::string kFolder = TERCET_SOURCE_DIR "/tests/real_weights";

// check_real_weights on the demo's model; figures of it by transformers are in small.json.
ProgramResult check(const std::string& expected, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"--device",   "cpu",   "--model", TERCET_SOURCE_DIR "/weights/demo.h5",
                                        "--expected", expected};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_built("tests/check_real_weights", arguments);
}

const std::vector<std::string> kDemo = {"--name", "demo", "--text", kFolder + "/small.raw"};

TEST_CASE("all figures of a small model are those of transformers") {
  const ProgramResult result = check(kFolder + "/small.json", kDemo);
  CHECK_MESSAGE(result.exit_code == 0, result.out << result.err);
  CHECK(contains(result.out, "60 of 60 hold"));
}

TEST_CASE("each figure that differs is found") {
  const TemporaryFolder folder;
  const std::string good = read_file(kFolder + "/small.json");
  const Json figures = parse_json(good, "small.json");
  const Json& demo = figures.at("models").at("demo");
  const auto first = [](const Json& json) { return json.as_array()[0]; };
  const std::vector<std::pair<std::string, std::string>> alterations = {
      {"\"perplexity\": 6", "\"perplexity\": 7"},
      {"\"ids\": 554", "\"ids\": 555"},
      {"\"sha256\": \"", "\"sha256\": \"0"},
      {"Tom likes tea.\\n", "Tom likes tin.\\n"},
      {fmt::format("\"cross_entropy\": {}", first(demo.at("probabilities")).at("cross_entropy").dump()),
       "\"cross_entropy\": 1"},
      {first(first(first(demo.at("last_hidden_state")).at("values"))).dump(), "0.5"},
      {first(first(demo.at("mean_logits")).at("values")).dump(), "0.5"},
      {first(first(demo.at("probabilities")).at("probability")).dump(), "0.5"}};
  for (const auto& [from, to] : alterations) {
    CAPTURE(from);
    std::string altered = good;
    REQUIRE(altered.find(from) != std::string::npos);
    altered.replace(altered.find(from), from.size(), to);
    const ProgramResult result = check(folder.file("altered.json", altered), kDemo);
    CHECK(result.exit_code == 1);
    CHECK_MESSAGE(contains(result.out, "59 of 60 hold"), result.out);
  }
}

TEST_CASE("without a text or with some of its windows the perplexity does not hold") {
  const ProgramResult none = check(kFolder + "/small.json", {"--name", "demo"});
  CHECK(none.exit_code == 1);
  CHECK(contains(none.out, "FAILED perplexity: not measured"));
  const ProgramResult part =
      check(kFolder + "/small.json", {"--name", "demo", "--text", kFolder + "/small.raw", "--windows", "3"});
  CHECK(part.exit_code == 1);
  CHECK(contains(part.out, "FAILED perplexity (of 3 windows: "));
}

TEST_CASE("a model whose size has no published figures is refused") {
  const ProgramResult result = check(kFolder + "/expected.json");
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "no figures are published for a model of these sizes"));
}

TEST_CASE("WikiText-2's test text gives 287,645 ids and 140 windows of 2,048") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(raw, "wikitext-2-raw-test.raw");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  const std::string text = testing::joined_rows(read_file(raw));
  CHECK(text.size() == 1296370);
  const std::vector<int32_t> ids = testing::text_ids(tokenizer, text);
  const Json expected = parse_json(read_file(kFolder + "/expected.json"), "expected.json").at("text");
  CHECK(std::ssize(ids) == expected.at("ids").as_int());
  CHECK(testing::sha256_of(ids) == expected.at("sha256").as_string());
  const auto windows = testing::windows_of(ids, 2048);
  CHECK(windows.size() == 140);
  CHECK(windows[0][0] == Tokenizer::end_id);
  CHECK(windows[1][0] == ids[2048]);  // no id 2 of its own
}

TEST_CASE("rows of a raw text are joined as they are measured") {
  CHECK(testing::joined_rows(" \n = A = \n \n b \n") == "\n\n = A = \n\n\n\n\n b \n");
  CHECK(testing::joined_rows("x\ny") == "x\n\n\ny");
  CHECK(testing::joined_rows("").empty());
  CHECK(testing::windows_of({1, 2, 3, 4, 5}, 2) == std::vector<std::vector<int32_t>>{{1, 2}, {3, 4}});
}

}  // namespace
}  // namespace tercet
