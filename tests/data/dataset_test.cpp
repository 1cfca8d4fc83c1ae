#include "data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/thread_pool.h"
#include "data/data_files.h"
#include "text/small_tokenizer.h"

using namespace tercet;
using namespace tercet::testing;

namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tokenizer() {
  static const Tokenizer small = small_tokenizer();
  return small;
}

// [2, one id per byte of each text..., 2]: what small_tokenizer makes of a sequence.
Ids sequence_ids(const std::string& prompt, const std::string& answer, bool terminated = true) {
  Ids ids = {2};
  for (const char byte : prompt + answer) ids.push_back(byte_id(byte));
  if (terminated) ids.push_back(2);
  return ids;
}

DataOptions options_for(std::vector<std::string> paths) {
  DataOptions options;
  options.paths = std::move(paths);
  return options;
}

std::string response_line(const std::string& prompt, const std::string& response) {
  Json record = Json::object();
  record.set("prompt", prompt).set("response", response);
  return record.dump() + '\n';
}

std::string pair_line(const std::string& prompt, const std::string& chosen, const std::string& rejected) {
  Json record = Json::object();
  record.set("prompt", prompt).set("chosen", chosen).set("rejected", rejected);
  return record.dump() + '\n';
}

std::string text_line(const std::string& text) { return Json(Json::Object{{"text", Json(text)}}).dump() + '\n'; }

const std::string two_turns =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
    R"({"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"
    "\n";

}  // namespace

TEST_CASE(
    "a sequence is id 2, the prompt, the answer with one leading space, and a final id 2 that belongs to the answer") {
  const DataFolder folder;
  const SftData data = load_sft(options_for({folder.write("a.jsonl", response_line("Q:", "  yes \n"))}), tokenizer());
  REQUIRE(data.sequences.size() == 1);
  const Sequence& sequence = data.sequences[0];
  CHECK(sequence.ids == sequence_ids("Q:", " yes"));
  CHECK(sequence.prompt_length == 3);
  CHECK(sequence.terminated);
  CHECK(sequence.ids.back() == Tokenizer::end_id);
  CHECK(sequence.answer_length() == 5);  // the final id 2 carries a loss: without it a model never learns to stop
  CHECK(data.tokens == 8);
  CHECK(data.answer_tokens == 5);
}

TEST_CASE("prompt and answer are encoded separately, so that no merge spans them") {
  const DataFolder folder;
  const Tokenizer merging = small_tokenizer({{":", " "}, {" ", "y"}});
  const std::string path = folder.write("a.jsonl", response_line("Q: ", "y"));
  const SftData data = load_sft(options_for({path}), merging);
  CHECK(data.sequences[0].ids == Ids{2, byte_id('Q'), byte_id(':'), byte_id(' '), 261, 2});
  CHECK(data.sequences[0].prompt_length == 4);
}

TEST_CASE("special strings inside a text are text: one id 2 at each end, whatever the text begins with") {
  const DataFolder folder;
  const std::string path = folder.write("a.jsonl", response_line("</s>Q", "</s>"));
  const SftData data = load_sft(options_for({path}), tokenizer());
  CHECK(data.sequences[0].ids == sequence_ids("</s>Q", " </s>"));
  CHECK(std::count(data.sequences[0].ids.begin(), data.sequences[0].ids.end(), 2) == 2);
}

TEST_CASE("an empty prompt is a prompt of id 2 alone") {
  const DataFolder folder;
  const std::string path = folder.write("a.jsonl", response_line("", "x"));
  const SftData sft = load_sft(options_for({path}), tokenizer());
  CHECK(sft.sequences[0].ids == sequence_ids("", " x"));
  CHECK(sft.sequences[0].prompt_length == 1);
  const PromptData prompts = load_prompts(options_for({path}), tokenizer());
  CHECK(prompts.prompts[0].ids == Ids{2});
}

TEST_CASE("text trains on all its tokens and keeps its spaces") {
  const DataFolder folder;
  const SftData data = load_sft(options_for({folder.write("a.jsonl", text_line(" ab\n"))}), tokenizer());
  CHECK(data.sequences[0].ids == sequence_ids("", " ab\n"));
  CHECK(data.sequences[0].prompt_length == 1);
  CHECK(data.answer_tokens == 5);
}

TEST_CASE("messages give their last assistant turn, or a sequence per turn with --turns all") {
  const DataFolder folder;
  DataOptions options = options_for({folder.write("a.jsonl", two_turns)});
  const std::string first = "\n\nHuman: a\n\nAssistant:";
  const std::string last = first + " b\n\nHuman: c\n\nAssistant:";
  SftData data = load_sft(options, tokenizer());
  REQUIRE(data.sequences.size() == 1);
  CHECK(data.sequences[0].ids == sequence_ids(last, " d"));
  options.turns = "all";
  data = load_sft(options, tokenizer());
  REQUIRE(data.sequences.size() == 2);
  CHECK(data.sequences[0].ids == sequence_ids(first, " b"));
  CHECK(data.sequences[1].ids == sequence_ids(last, " d"));
  CHECK(data.sequences[0].record == 0);
  CHECK(data.sequences[1].record == 0);
  CHECK(data.sequences[0].sample != data.sequences[1].sample);
  options.turns = "some";
  CHECK(folder.input_error([&] { load_sft(options, tokenizer()); }) == "--turns: \"some\" is neither last nor all");
}

TEST_CASE("SFT uses the chosen answer of a pair") {
  const DataFolder folder;
  const SftData data = load_sft(options_for({folder.write("a.jsonl", pair_line("Q", "good", ""))}), tokenizer());
  CHECK(data.sequences[0].ids == sequence_ids("Q", " good"));
}

TEST_CASE("an over-long SFT record is dropped and counted, or cut without a final id 2") {
  const DataFolder folder;
  // Ids: 2 "Q" " abc" 2 = 7; 2 "Q" " a" 2 = 5; 2 "QQQQQQ" ... has no room for an answer in 7.
  DataOptions options = options_for(
      {folder.write("a.jsonl", response_line("Q", "abc") + response_line("Q", "a") + response_line("QQQQQQ", "a"))});
  options.max_length = 6;
  SftData data = load_sft(options, tokenizer());
  CHECK(data.sequences.size() == 1);
  CHECK(data.drops.count(drop::too_long) == 2);
  options.truncate = true;
  data = load_sft(options, tokenizer());
  REQUIRE(data.sequences.size() == 2);
  CHECK(data.sequences[0].ids == sequence_ids("Q", " abc", false));
  CHECK_FALSE(data.sequences[0].terminated);
  CHECK(data.sequences[1].terminated);
  CHECK(data.drops.truncated == 1);
  CHECK(data.drops.count(drop::prompt_too_long) == 1);
  options.max_length = 7;
  CHECK(load_sft(options, tokenizer()).sequences[0].terminated);
}

TEST_CASE("--max-prompt-tokens counts the leading id 2") {
  const DataFolder folder;
  DataOptions options = options_for({folder.write("a.jsonl", response_line("abc", "x") + response_line("ab", "x"))});
  options.max_prompt_tokens = 3;
  CHECK(load_sft(options, tokenizer()).drops.count(drop::prompt_too_long) == 1);
  const PromptData prompts = load_prompts(options, tokenizer());
  CHECK(prompts.prompts.size() == 1);
  CHECK(prompts.drops.count(drop::prompt_too_long) == 1);
}

TEST_CASE("pairs that cannot teach anything are dropped by class") {
  const DataFolder folder;
  const std::string good = pair_line("Q", "yes", "no");
  const std::string differing =
      R"({"chosen": "\n\nHuman: a\n\nAssistant: x", "rejected": "\n\nHuman: b\n\nAssistant: y"})";
  const PairData data =
      load_pairs(options_for({folder.write("a.jsonl", good + pair_line("Q", "", "no") + pair_line("Q", "yes", " \n") +
                                                          pair_line("Q", "same ", " same") + differing + "\n")}),
                 tokenizer());
  REQUIRE(data.pairs.size() == 1);
  CHECK(data.pairs[0].chosen.ids == sequence_ids("Q", " yes"));
  CHECK(data.pairs[0].rejected.ids == sequence_ids("Q", " no"));
  CHECK(data.pairs[0].chosen.prompt_length == 2);
  CHECK(data.pairs[0].chosen.sample != data.pairs[0].rejected.sample);
  CHECK(data.tokens == 13);
  CHECK(data.drops.count(drop::empty_answer) == 2);
  CHECK(data.drops.count(drop::identical_pair) == 1);
  CHECK(data.drops.count(drop::prompts_differ) == 1);
  CHECK(
      folder.hide(data.drops.text()) ==
      "5 records read; 4 dropped: 2 empty answer (first at D/a.jsonl:2), 1 identical answers (first at D/a.jsonl:4), 1 "
      "prompts differ (first at D/a.jsonl:5)");
  CHECK(
      data.drops.json().dump() ==
      R"({"records":5,"other_shares":0,"truncated":0,"dropped":{"empty answer":2,"identical answers":1,"prompts differ":1}})");
}

TEST_CASE("each answer of a pair is cut by itself, and the shorter one stays whole") {
  const DataFolder folder;
  const std::string longer(39, 'r');  // with its space 40 ids, against 3 of the chosen one, in 32
  DataOptions options = options_for({folder.write("a.jsonl", pair_line("Q", "ok", longer))});
  options.max_length = 32;
  CHECK(folder.input_error([&] { load_pairs(options, tokenizer()); }) ==
        "D/a.jsonl: no usable record (1 record read; 1 dropped: 1 too long (first at D/a.jsonl:1)); give data that "
        "fits, or "
        "other limits");
  options.truncate = true;
  const PairData data = load_pairs(options, tokenizer());
  REQUIRE(data.pairs.size() == 1);
  CHECK(data.pairs[0].chosen.ids == sequence_ids("Q", " ok"));
  CHECK(data.pairs[0].chosen.terminated);
  CHECK(data.pairs[0].rejected.token_count() == 32);
  CHECK_FALSE(data.pairs[0].rejected.terminated);
  CHECK(data.drops.truncated == 1);
}

TEST_CASE("a pair that is equal after truncation is dropped") {
  const DataFolder folder;
  DataOptions options =
      options_for({folder.write("a.jsonl", pair_line("Q", "aaaaaa1", "aaaaaa2") + pair_line("Q", "a", "b"))});
  options.max_length = 6;
  options.truncate = true;
  const PairData data = load_pairs(options, tokenizer());
  CHECK(data.pairs.size() == 1);
  CHECK(data.drops.count(drop::identical_pair) == 1);
  CHECK(data.drops.truncated == 0);
}

TEST_CASE("a prompt that fills the length leaves no empty answer behind") {
  const DataFolder folder;
  DataOptions options =
      options_for({folder.write("a.jsonl", response_line(std::string(20, 'q'), "a") + response_line("q", "a"))});
  options.max_length = 16;
  options.truncate = true;
  const SftData data = load_sft(options, tokenizer());
  CHECK(data.sequences.size() == 1);
  CHECK(data.answer_tokens > 0);
  CHECK(data.drops.count(drop::prompt_too_long) == 1);
}

TEST_CASE("the prompt of every form, each distinct one once") {
  const DataFolder folder;
  const std::string open = R"({"messages": [{"role": "user", "content": "z"}]})";
  const std::string path =
      folder.write("a.jsonl", response_line("Q", "1") + response_line("Q", "2") + pair_line("R", "1", "2") + two_turns +
                                  open + "\n" + "{\"prompt\": \"Q\"}\n{\"prompt\": \"S\"}\n");
  const PromptData data = load_prompts(options_for({path}), tokenizer());
  std::vector<std::string> texts;
  for (const Prompt& prompt : data.prompts) {
    texts.push_back(prompt.text);
    CHECK(prompt.ids == sequence_ids(prompt.text, "", false));
  }
  CHECK(texts == std::vector<std::string>{"Q", "R", "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:",
                                          "\n\nHuman: z\n\nAssistant:", "S"});
  CHECK(data.drops.count(drop::duplicate_prompt) == 2);
  CHECK(data.prompts[1].record == 2);
  std::vector<std::string> answers;
  for (const Prompt& prompt : data.prompts) answers.push_back(prompt.answer);
  CHECK(answers == std::vector<std::string>{" 1", " 1", " d", "", ""});
}

TEST_CASE("prompts whose answers are of no use are dropped under the class that is named") {
  const DataFolder folder;
  const std::string path = folder.write("a.jsonl", response_line("Q", "no") + response_line("R", "yes") +
                                                       response_line("Q", "yes") + "{\"prompt\": \"S\"}\n");
  const PromptData data = load_prompts(options_for({path}), tokenizer(), [](std::string_view answer) {
    return answer == " yes" ? std::string_view{} : "not yes";
  });
  REQUIRE(data.prompts.size() == 2);
  CHECK(data.prompts[0].text == "R");
  CHECK(data.prompts[1].text == "Q");  // a dropped record does not stand in the way of a later one
  CHECK(data.drops.text() == "4 records read; 2 dropped: 2 not yes (first at " + path + ":1)");
}

TEST_CASE("a form that a step cannot use is a bad record") {
  const DataFolder folder;
  const std::string text = folder.write("t.jsonl", text_line("x"));
  const std::string bare = folder.write("p.jsonl", "{\"prompt\": \"x\"}\n");
  const std::string end = "; correct it, or leave out up to N bad records with --max-bad-records N";
  CHECK(folder.input_error([&] { load_prompts(options_for({text}), tokenizer()); }) ==
        "D/t.jsonl:1: a record of text is of no use here; give records with a prompt" + end);
  CHECK(folder.input_error([&] { load_pairs(options_for({text}), tokenizer()); }) ==
        "D/t.jsonl:1: a record of text is of no use here; give records with chosen and rejected" + end);
  CHECK(folder.input_error([&] { load_sft(options_for({bare}), tokenizer()); }) ==
        "D/p.jsonl:1: a record of prompt is of no use here; give records with an answer" + end);
}

TEST_CASE("the first bad record ends loading unless some are allowed, and then they are counted") {
  const DataFolder folder;
  const std::string good = response_line("Q", "a");
  DataOptions options =
      options_for({folder.write("a.jsonl", good + "\n{\n" + good + "{\"prompt\": \"x\xFF\"}\n" + good)});
  const std::string broken = folder.input_error([&] { load_sft(options, tokenizer()); });
  CHECK(broken.starts_with("D/a.jsonl:3: not valid JSON at byte"));
  CHECK(broken.ends_with("; correct it, or leave out up to N bad records with --max-bad-records N"));
  options.max_bad_records = 1;
  const std::string second = folder.input_error([&] { load_sft(options, tokenizer()); });
  CHECK(second.starts_with("D/a.jsonl:5: not valid JSON at byte"));
  CHECK(second.ends_with("; it is bad record 2 where --max-bad-records allows 1; the first is D/a.jsonl:3"));
  options.max_bad_records = 2;
  const SftData data = load_sft(options, tokenizer());
  CHECK(data.sequences.size() == 3);
  CHECK(data.drops.records == 5);  // the blank line is no record
  CHECK(data.drops.count(drop::bad_record) == 2);
  CHECK(data.sequences[2].record == 4);
}

TEST_CASE("no usable record is an error") {
  const DataFolder folder;
  const std::string empty = folder.write("a.jsonl", "");
  const std::string unusable = folder.write("b.jsonl", response_line("Q", " "));
  CHECK(folder.input_error([&] {
    load_sft(options_for({empty, unusable}), tokenizer());
  }) == "D/a.jsonl, D/b.jsonl: no usable record (1 record read; 1 dropped: 1 empty answer (first at D/b.jsonl:1)); "
        "give data "
        "that fits, or other limits");
}

TEST_CASE("options that make no sense are refused") {
  const DataFolder folder;
  const auto error_with = [&](const std::function<void(DataOptions&)>& change) {
    DataOptions options = options_for({folder.write("a.jsonl", response_line("Q", "a"))});
    change(options);
    return folder.input_error([&] { load_sft(options, tokenizer()); });
  };
  CHECK(error_with([](DataOptions& o) { o.paths.clear(); }) ==
        "--data: no files are given; give at least one .jsonl or .jsonl.gz file");
  CHECK(error_with([](DataOptions& o) { o.max_length = 2; }) ==
        "--max-length: 2 ids cannot hold an answer; a sequence needs at least 3: id 2, an answer, id 2");
  CHECK(error_with([](DataOptions& o) { o.max_prompt_tokens = -1; }) == "--max-prompt-tokens: -1 is negative");
  CHECK(error_with([](DataOptions& o) { o.max_bad_records = -1; }) == "--max-bad-records: -1 is negative");
  CHECK(error_with([](DataOptions& o) {
          o.split = {1, 1};
          o.split_share = 2;
        }) == "--split: there is no share 2 among 2");
}

TEST_CASE("weights are parsed from the end of a path") {
  const DataFolder folder;
  CHECK(parse_data_path("a.jsonl").weight == 1);
  CHECK(parse_data_path("a.jsonl=2.5").path == "a.jsonl");
  CHECK(parse_data_path("a.jsonl=2.5").weight == 2.5);
  CHECK(parse_data_path("x=y/a.jsonl").path == "x=y/a.jsonl");
  CHECK(parse_data_path("a=3=1").path == "a=3");
  for (const char* path : {"a.jsonl=0", "a.jsonl=-1", "a.jsonl=inf", "a.jsonl=501"})
    CHECK(folder.input_error([&] { parse_data_path(path); })
              .find(" is not above 0 and at most 500; a weight is how often a record appears in an epoch") !=
          std::string::npos);
}

TEST_CASE("a file that opens with a byte order mark reads as one without") {
  const DataFolder folder;
  const SftData data =
      load_sft(options_for({folder.write("a.jsonl", "\xEF\xBB\xBF" + response_line("Q", "a"))}), tokenizer());
  CHECK(data.sequences[0].ids == sequence_ids("Q", " a"));
}

TEST_CASE("a weight repeats the records of its file: whole copies, and a fixed random part for a fraction") {
  const DataFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += response_line("Q" + std::to_string(i), "a");
  const std::string path = folder.write("a.jsonl", lines);
  const std::string other = folder.write("b.jsonl", response_line("other", "b"));
  const auto load = [&](const std::string& weight, uint64_t seed) {
    DataOptions options = options_for({path + weight, other});
    options.seed = seed;
    return load_sft(options, tokenizer()).sequences;
  };
  const std::vector<Sequence> sequences = load("=2.25", 1);
  CHECK(sequences.size() == 226);
  std::vector<int> counts(101, 0);
  std::set<uint64_t> samples;
  for (const Sequence& sequence : sequences) {
    ++counts[sequence.record];
    samples.insert(sequence.sample);
    CHECK(sequence.sample < uint64_t{1} << 63);
  }
  CHECK(samples.size() == 226);  // every copy draws its own random numbers
  CHECK(std::count(counts.begin(), counts.end(), 3) == 25);
  CHECK(std::count(counts.begin(), counts.end(), 2) == 75);
  CHECK(counts[100] == 1);
  const auto records = [](const std::vector<Sequence>& from) {
    std::vector<uint64_t> found;
    for (const Sequence& sequence : from) found.push_back(sequence.record);
    return found;
  };
  CHECK(records(load("=0.3", 1)).size() == 31);
  CHECK(records(load("=0.3", 1)) == records(load("=0.3", 1)));
  CHECK(records(load("=0.3", 1)) != records(load("=0.3", 2)));
}

TEST_CASE("--split is parsed and checked") {
  const DataFolder folder;
  CHECK(parse_split("2,4,4") == std::vector<double>{2, 4, 4});
  CHECK(parse_split("1,0,.5") == std::vector<double>{1, 0, 0.5});
  for (const char* split : {"", "1,", ",1", "1,a", "-1,2", "0,0", "1;2", "inf,1", "nan", "1, 2"})
    CHECK(folder.input_error([&] { parse_split(split); }) ==
          "--split: \"" + std::string(split) + "\" is not a list of shares; for example 2,4,4");
}

TEST_CASE("the shares of a split are disjoint, cover everything, keep dialogues together and have the asked sizes") {
  const DataFolder folder;
  std::string lines;
  for (int i = 0; i < 2000; ++i) {
    const std::string turn = "turn " + std::to_string(i);
    lines += response_line("\n\nHuman: " + turn + "\n\nAssistant:", "a");
    lines += response_line("\n\nHuman: " + turn + "\n\nAssistant: a\n\nHuman: more\n\nAssistant:", "b");
  }
  DataOptions options = options_for({folder.write("a.jsonl", lines)});
  options.split = {2, 4, 4};
  std::set<uint64_t> seen;
  std::vector<size_t> sizes;
  for (options.split_share = 0; options.split_share < 3; ++options.split_share) {
    const SftData data = load_sft(options, tokenizer());
    sizes.push_back(data.sequences.size());
    CHECK(data.drops.other_shares == 4000 - static_cast<int64_t>(data.sequences.size()));
    std::set<uint64_t> dialogues;
    for (const Sequence& sequence : data.sequences) {
      CHECK(seen.insert(sequence.record).second);
      dialogues.insert(sequence.record / 2);
    }
    CHECK(dialogues.size() * 2 == data.sequences.size());
  }
  CHECK(seen.size() == 4000);
  // 2000 dialogues: standard deviations 18, 22 and 22; four of them, and two records per dialogue.
  CHECK(std::abs(static_cast<int>(sizes[0]) - 800) < 2 * 4 * 18);
  CHECK(std::abs(static_cast<int>(sizes[1]) - 1600) < 2 * 4 * 22);
  CHECK(std::abs(static_cast<int>(sizes[2]) - 1600) < 2 * 4 * 22);
}

TEST_CASE("a share depends on the first human turn alone, in whatever form it comes, and never on the seed") {
  const std::vector<double> split = {1, 1, 1, 1, 1, 1, 1, 1};
  // From XXH3-64 of the xxhash package. They are part of what a finished run means and must never change.
  CHECK(split_share_of("turn 0", {2, 4, 4}) == 1);
  CHECK(split_share_of("turn 1", {2, 4, 4}) == 1);
  CHECK(split_share_of("a", {2, 4, 4}) == 2);
  CHECK(split_share_of("", {2, 4, 4}) == 0);
  CHECK(split_share_of("anything", {0, 1, 0}) == 1);
  CHECK(split_share_of("", {3}) == 0);
  const DataFolder folder;
  const std::string path =
      folder.write("a.jsonl", two_turns + R"({"prompt": "\n\nHuman: a\n\nAssistant:", "response": "x"})" + "\n" +
                                  R"({"prompt": "a", "response": "x"})" + "\n");
  DataOptions options = options_for({path});
  options.split = split;
  options.split_share = split_share_of("a", split);
  for (options.seed = 0; options.seed < 3; ++options.seed) CHECK(load_sft(options, tokenizer()).sequences.size() == 3);
}

TEST_CASE("text blocks cover a text so that each id but the first is learned once") {
  const DataFolder folder;
  DataOptions options = options_for({folder.write("a.jsonl", text_line("abcdefg") + text_line("") + text_line("x"))});
  CHECK(folder.input_error([&] { load_text_blocks(options, tokenizer()); }) ==
        "--max-length: text is cut into blocks of --max-length ids, which is not set");
  options.max_length = 4;
  const TextBlocks data = load_text_blocks(options, tokenizer());
  const Ids whole = sequence_ids("", "abcdefg");  // 9 ids
  REQUIRE(data.blocks.size() == 4);
  CHECK(data.blocks[0].ids == Ids(whole.begin(), whole.begin() + 4));
  CHECK(data.blocks[1].ids == Ids(whole.begin() + 3, whole.begin() + 7));
  CHECK(data.blocks[2].ids == Ids(whole.begin() + 6, whole.end()));
  CHECK(data.blocks[3].ids == sequence_ids("", "x"));
  CHECK_FALSE(data.blocks[1].terminated);
  CHECK(data.blocks[2].terminated);
  CHECK(data.blocks[0].prompt_length == 1);
  CHECK(data.blocks[0].sample != data.blocks[1].sample);
  CHECK(data.drops.count(drop::empty_text) == 1);
  CHECK(data.tokens == 14);
}

TEST_CASE("score takes every record with an answer, text or ids, drops none and keeps the order") {
  const DataFolder folder;
  DataOptions options = options_for(
      {folder.write("a.jsonl", "{\"ids\": [2, 9, 2]}\n{\"ids\": [9]}\n" + text_line(" ab ") + text_line("") +
                                   response_line("Q", "") + pair_line("Q", "a", "b") + two_turns)});
  const ScoreData data = load_score(options, tokenizer());
  REQUIRE(data.items.size() == 7);
  CHECK(data.items[0].sequence.ids == Ids{2, 9, 2});
  CHECK(data.items[0].sequence.terminated);
  CHECK(data.items[1].sequence.ids == Ids{9});
  CHECK_FALSE(data.items[1].sequence.terminated);
  CHECK(data.items[2].sequence.ids == sequence_ids("", " ab ", false));
  CHECK_FALSE(data.items[2].sequence.terminated);
  CHECK(data.items[3].sequence.ids == Ids{2});
  CHECK(data.items[4].sequence.ids == Ids{2, byte_id('Q'), 2});  // an answer of id 2 alone
  CHECK(data.items[4].sequence.terminated);
  CHECK(data.items[5].sequence.ids == sequence_ids("Q", " a"));
  CHECK(data.items[5].rejected->ids == sequence_ids("Q", " b"));
  CHECK(data.items[6].sequence.ids.size() > 20);
  CHECK(folder.hide(data.items[6].where) == "D/a.jsonl:7");
  CHECK(data.items[6].record == 6);
  options.max_length = 4;
  CHECK(folder.input_error([&] { load_score(options, tokenizer()); }) ==
        "D/a.jsonl:3: the sequence has 5 ids, more than 4; shorten the record or raise --max-length");
  options.paths[0] += "=2";
  CHECK(folder.input_error([&] { load_score(options, tokenizer()); }) ==
        "--data D/a.jsonl: records are scored once each; leave out the weight");
}

TEST_CASE("what is loaded does not depend on the number of threads") {
  const DataFolder folder;
  std::string lines;
  for (int i = 0; i < 1500; ++i)
    lines += i % 7 == 3 ? "broken\n" : response_line("Q" + std::to_string(i), i % 5 == 0 ? "" : "a");
  DataOptions options = options_for({folder.write("a.jsonl.gz", gzipped(lines))});
  options.max_bad_records = 1000;
  const auto load = [&](int threads) {
    set_threads(threads);
    return load_sft(options, tokenizer());
  };
  const SftData one = load(1);
  const SftData three = load(3);
  set_threads(available_cores());
  CHECK(one.drops.text() == three.drops.text());
  REQUIRE(one.sequences.size() == three.sequences.size());
  bool equal = true;
  for (size_t i = 0; i < one.sequences.size(); ++i)
    equal =
        equal && one.sequences[i].ids == three.sequences[i].ids && one.sequences[i].sample == three.sequences[i].sample;
  CHECK(equal);
}
