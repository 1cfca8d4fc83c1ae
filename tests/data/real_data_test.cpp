// The Anthropic harmless-base test set, read as each step reads it, against OPT's own tokenizer.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "data/dataset.h"
#include "data/records.h"
#include "text/shared_data.h"

using namespace tercet;

TEST_CASE("of 2,312 real pairs, 5 with differing prompts and 4 with an empty answer are dropped and counted") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(path, "hh-harmless-base-test.jsonl.gz");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  DataOptions options;
  options.paths = {path};
  const PairData data = load_pairs(options, tokenizer);
  CHECK(data.pairs.size() == 2303);
  CHECK(data.drops.records == 2312);
  CHECK(data.drops.count(drop::prompts_differ) == 5);
  CHECK(data.drops.count(drop::empty_answer) == 4);
  CHECK(data.drops.total() == 9);
  int64_t broken = 0;
  int64_t longest = 0;
  for (const PreferencePair& pair : data.pairs) {
    const auto prompt_end = pair.chosen.ids.begin() + pair.chosen.prompt_length;
    const bool same_prompt = pair.chosen.prompt_length == pair.rejected.prompt_length &&
                             std::equal(pair.chosen.ids.begin(), prompt_end, pair.rejected.ids.begin());
    for (const Sequence* sequence : {&pair.chosen, &pair.rejected}) {
      const bool whole = sequence->terminated && sequence->ids.front() == 2 && sequence->ids.back() == 2 &&
                         std::count(sequence->ids.begin(), sequence->ids.end(), 2) == 2;
      // "\n\nAssistant:" is 50118 50118 46184 35.
      const bool marked = sequence->ids[static_cast<size_t>(sequence->prompt_length) - 1] == 35;
      const std::string answer =
          tokenizer.decode(std::span(sequence->ids).subspan(static_cast<size_t>(sequence->prompt_length)));
      const bool spaced =
          answer.size() > 1 && answer[0] == ' ' && strip_spaces(answer) == std::string_view(answer).substr(1);
      broken += same_prompt && whole && marked && spaced ? 0 : 1;
      longest = std::max(longest, sequence->token_count());
    }
  }
  CHECK(broken == 0);
  CHECK(longest == 1022);  // the longest dialogue has 1,021 ids with its leading id 2; the final id 2 makes 1,022
}

TEST_CASE("SFT and PPO read the same file") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(path, "hh-harmless-base-test.jsonl.gz");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  DataOptions options;
  options.paths = {path};
  const SftData sft = load_sft(options, tokenizer);
  CHECK(static_cast<int64_t>(sft.sequences.size()) + sft.drops.count(drop::empty_answer) == 2312);
  const PromptData prompts = load_prompts(options, tokenizer);
  CHECK(static_cast<int64_t>(prompts.prompts.size()) + prompts.drops.count(drop::duplicate_prompt) == 2312);
}

TEST_CASE("the dialogues of a gzip file give the ids of Hugging Face's tokenizers") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(path, "hh-harmless-base-test.jsonl.gz");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  const std::string golden_path = TERCET_SOURCE_DIR "/tests/golden/tokenizer_goldens.json";
  const Json golden = parse_json(read_file(golden_path), golden_path).at("files").at("hh-harmless-base-test.jsonl.gz");
  LineReader reader(path);
  std::vector<int32_t> ids;
  int64_t texts = 0;
  for (std::string line; reader.next(line);)
    for (const char* field : {"chosen", "rejected"}) {
      const Json record = parse_json(line, reader.where());
      const std::vector<int32_t> more = tokenizer.encode(record.at(field).as_string());
      ids.insert(ids.end(), more.begin(), more.end());
      ++texts;
    }
  CHECK(texts == golden.at("texts").as_int());
  CHECK(static_cast<int64_t>(ids.size()) == golden.at("ids").as_int());
  CHECK(fmt::format("{:016x}", hash64(std::as_bytes(std::span<const int32_t>(ids)))) ==
        golden.at("xxh3_64").as_string());
}

TEST_CASE("other names of fields read the grade-school questions") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(path, "gsm8k-test.jsonl");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  DataOptions options;
  options.paths = {path};
  options.fields = "prompt=question,response=answer";
  options.prompt_template = "human-assistant";
  const SftData data = load_sft(options, tokenizer);
  CHECK(data.sequences.size() == 1319);
  CHECK(data.drops.total() == 0);
  CHECK(tokenizer.decode(data.sequences[0].ids).starts_with("\n\nHuman: Janet\u2019s ducks lay 16 eggs per day."));
}
