// Rewards in code.
#include "train/reward_rule.h"

#include <doctest/doctest.h>

#include "base/file.h"
#include "text/shared_data.h"

namespace tercet {
namespace {

const std::string kTokenizerFolder = TERCET_SOURCE_DIR "/tests/golden/import/bin-fp32";

TEST_CASE("the number after the last ####") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"He has 48/2 = <<48/2=24>>24 figs.\n#### 24", "24"},
      {"#### 72\n", "72"},
      {"####72", "72"},
      {"####   72 figs", "72"},
      {"#### 1,080", "1080"},
      {"#### 1080", "1080"},
      {"#### $1,080.50", "1080.5"},
      {"#### -$5", "-5"},
      {"#### $-5", "-5"},
      {"#### -0", "0"},
      {"#### 0.0", "0"},
      {"#### 007", "7"},
      {"#### .5", "0.5"},
      {"#### 72.", "72"},
      {"#### 72.00", "72"},
      {"#### 3.14.15", "3.14"},
      {"#### 5 #### 6", "6"},  // the last one counts
      {"#####9", "9"},
      {"#### 12345678901234567890123", "12345678901234567890123"},  // no number type is wide enough
  };
  for (const auto& [text, number] : table) {
    CAPTURE(text);
    REQUIRE(final_number(text));
    CHECK(*final_number(text) == number);
  }
  for (const std::string text : {"", "72", "### 72", "####", "#### ", "#### seventy", "#### ,72", "#### .", "#### -",
                                 "#### 5 ####", "#### \n72"})
    CHECK_MESSAGE(!final_number(text), text);
}

TEST_CASE("gsm8k gives 1 for the number of the record's answer and 0 otherwise") {
  const Tokenizer tokenizer = Tokenizer::load(kTokenizerFolder);
  const RewardRule* rule = find_reward_rule("gsm8k");
  REQUIRE(rule != nullptr);
  const std::unique_ptr<RewardSource> source = rule->source(tokenizer);
  const std::vector<std::pair<std::string, std::string>> pairs = {{" so 3+4=7\n#### 7", " #### 7"},
                                                                  {" #### 7.0", " #### 7"},
                                                                  {" 7", " #### 7"},
                                                                  {" #### 8", " #### 7"},
                                                                  {" #### 7 #### 8", " #### 7"}};
  std::vector<std::vector<int32_t>> ids;
  for (const auto& [response, answer] : pairs) {
    ids.push_back(tokenizer.encode(response));
    ids.back().push_back(Tokenizer::end_id);
  }
  std::vector<ScoredResponse> responses;
  for (size_t i = 0; i < pairs.size(); ++i)
    responses.push_back({.prompt = {}, .response = ids[i], .terminated = true, .answer = pairs[i].second});
  CHECK(source->score(responses) == std::vector<double>{1, 1, 0, 0, 0});
  CHECK(source->mean() == 0);
  CHECK(source->sd() == 1);
  CHECK(rule->drop_class("#### 7").empty());
  CHECK(rule->drop_class("7") == drop::no_number);
  CHECK(find_reward_rule("") == nullptr);
  CHECK_THROWS(find_reward_rule("gsm9k"));
}

TEST_CASE("every problem of GSM8K has a number to compare with, and fits its recipe") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(train, "gsm8k-train.jsonl");
  TERCET_SHARED_DATA_OR_SKIP(test, "gsm8k-test.jsonl");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  DataOptions options;
  options.fields = "prompt=question,response=answer";
  options.prompt_template = "human-assistant";
  options.max_prompt_tokens = 256;
  for (const auto& [path, problems] : {std::pair{train, 7473}, {test, 1319}}) {
    options.paths = {path};
    const PromptData data = load_prompts(options, tokenizer, find_reward_rule("gsm8k")->drop_class);
    CHECK(static_cast<int>(data.prompts.size()) == problems);
    CHECK(data.drops.total() == 0);
    for (const Prompt& prompt : data.prompts) REQUIRE(tokenizer.encode(prompt.answer).size() < 384);
  }
}

}  // namespace
}  // namespace tercet
