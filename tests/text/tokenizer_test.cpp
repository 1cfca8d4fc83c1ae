#include "text/tokenizer.h"

#include <doctest/doctest.h>

#include <ctime>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "temporary_folder.h"
#include "text/merge_table.h"
#include "text/shared_data.h"
#include "text/small_tokenizer.h"

using namespace tercet;
using namespace tercet::testing;

namespace {

using Ids = std::vector<int32_t>;

std::string random_bytes(uint64_t sample, size_t length, uint64_t alphabet) {
  const RandomStream random(7, RandomPurpose::test);
  std::string bytes;
  for (uint32_t i = 0; i < length; ++i) bytes += static_cast<char>(random.below(alphabet, sample, i));
  return bytes;
}

// What BPE means, word for word: the pair of lowest rank, at its leftmost place, until none is left.
Ids merge_slowly(Ids ids, const MergeTable& table) {
  while (true) {
    size_t best = ids.size();
    Merge best_merge{std::numeric_limits<int32_t>::max(), 0};
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (const auto merge = table.find(ids[i], ids[i + 1]); merge && merge->rank < best_merge.rank) {
        best = i;
        best_merge = *merge;
      }
    if (best == ids.size()) return ids;
    ids[best] = best_merge.merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Runs `action` and returns the message of the Error that it must throw, with exit code 2.
std::string input_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "no error";
}

std::string error_of(const Json& vocabulary, const std::string& merges) {
  return input_error([&] { Tokenizer::from_texts(vocabulary.dump(), merges, "F"); });
}

using testing::TemporaryFolder;

Json tokenizer_json() {
  const std::vector<std::pair<std::string, std::string>> merges = {{"a", "b"}, {" ", "ab"}};
  Json model = Json::object();
  Json merge_list = Json::array();
  merge_list.push_back("a b");
  merge_list.push_back(Json(Json::Array{Json("\u0120"), Json("ab")}));
  model.set("type", "BPE").set("dropout", Json()).set("unk_token", Json()).set("continuing_subword_prefix", "");
  model.set("vocab", small_vocabulary(merges)).set("merges", merge_list);
  Json pre_tokenizer = Json::object();
  pre_tokenizer.set("type", "ByteLevel").set("add_prefix_space", false).set("trim_offsets", true);
  Json extra = Json::object();
  extra.set("id", 300).set("content", "<mask>").set("special", true);
  Json json = Json::object();
  json.set("version", "1.0").set("added_tokens", Json(Json::Array{extra})).set("normalizer", Json());
  return json.set("pre_tokenizer", pre_tokenizer).set("model", model);
}

}  // namespace

TEST_CASE("merges go by rank, then from the left") {
  const Tokenizer tokenizer = small_tokenizer({{"a", "a"}, {"b", "c"}, {"aa", "a"}});
  CHECK(tokenizer.encode("aaa") == Ids{262});
  CHECK(tokenizer.encode("aaaa") == Ids{260, 260});
  CHECK(tokenizer.encode("aaaaa") == Ids{260, 262});
  CHECK(tokenizer.encode("abc") == Ids{byte_id('a'), 261});
  CHECK(tokenizer.encode("").empty());
}

TEST_CASE("short and long pieces are merged as the definition says") {
  MergeTable table(64);
  const RandomStream random(3, RandomPurpose::test);
  int32_t rank = 0;
  for (uint64_t i = 0; i < 64; ++i) {
    const auto left = static_cast<int32_t>(random.below(12, i, 0));
    const auto right = static_cast<int32_t>(random.below(12, i, 1));
    if (table.insert(left, right, {rank, 4 + static_cast<int32_t>(random.below(8, i, 2))})) ++rank;
  }
  Merger merger(table);
  for (uint64_t sample = 0; sample < 300; ++sample) {
    Ids ids(random.below(90, 1000 + sample, 0));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(random.below(4, sample, static_cast<uint32_t>(i)));
    Ids merged = ids;
    merger.apply(merged);
    CHECK(merged == merge_slowly(ids, table));
  }
}

TEST_CASE("the 65 golden texts give Hugging Face's ids, plain and with special tokens") {
  TERCET_SHARED_DATA_OR_SKIP(vocabulary, "metaseq-gpt2-vocab.json");
  TERCET_SHARED_DATA_OR_SKIP(merges, "metaseq-gpt2-merges.txt");
  TERCET_SHARED_DATA_OR_SKIP(goldens, "opt_tokenizer_goldens.jsonl");
  const Tokenizer tokenizer = Tokenizer::from_texts(read_file(vocabulary), read_file(merges), "OPT");
  CHECK(tokenizer.size() == 50265);
  std::string text = read_file(goldens);
  int rows = 0;
  for (size_t begin = 0; begin < text.size(); ++rows) {
    const size_t end = text.find('\n', begin);
    const Json row = parse_json(std::string_view(text).substr(begin, end - begin), goldens);
    begin = end + 1;
    const std::string& input = row.at("text").as_string();
    const auto ids_of = [&](const char* key) {
      Ids ids;
      for (const Json& id : row.at(key).as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
      return ids;
    };
    INFO(row.at("name").as_string());
    CHECK(tokenizer.encode(input) == ids_of("ids_no_special"));
    CHECK(tokenizer.encode_with_specials(input) == ids_of("ids_hf_no_bos"));
    CHECK(tokenizer.decode(tokenizer.encode(input)) == input);
  }
  CHECK(rows == 65);
}

TEST_CASE("a literal special token in a text is text, and a token only on request") {
  const Tokenizer tokenizer = small_tokenizer();
  const Ids plain = {byte_id('<'), byte_id('/'), byte_id('s'), byte_id('>')};
  CHECK(tokenizer.encode("</s>") == plain);
  CHECK(tokenizer.encode_with_specials("</s>") == Ids{2});
  CHECK(tokenizer.encode_with_specials("a<pad></s>b</s>") == Ids{byte_id('a'), 1, 2, byte_id('b'), 2});
  CHECK(tokenizer.encode_with_specials("<s>") == Ids{byte_id('<'), byte_id('s'), byte_id('>')});
}

TEST_CASE("10,000 random byte strings round trip") {
  const Tokenizer tokenizer = small_tokenizer({{"a", "b"}, {" ", "a"}, {"\xC3", "\xA9"}, {std::string(1, 0), "\x01"}});
  const RandomStream random(11, RandomPurpose::test);
  for (uint64_t sample = 0; sample < 10000; ++sample) {
    // Half of them from all bytes, half from the lowest 128, where words, spaces and NUL are frequent.
    const std::string bytes = random_bytes(sample, random.below(80, sample), sample % 2 == 0 ? 256 : 128);
    if (tokenizer.decode(tokenizer.encode(bytes), false) != bytes) FAIL_CHECK("sample " << sample);
  }
}

TEST_CASE("a run of a million letters is merged in about a second, not in hours") {
  const Tokenizer tokenizer = small_tokenizer({{"a", "b"}, {"ab", "ab"}, {"abab", "abab"}, {"b", "a"}});
  std::string text;
  for (int i = 0; i < 500000; ++i) text += "ab";
  const std::clock_t start = std::clock();
  const Ids ids = tokenizer.encode(text);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(ids.size() == 125000);
  // Processor time is about 0.5 s; a quadratic merge would take hours. The bound leaves room for sanitizers.
  CHECK(seconds < 20);
}

TEST_CASE(
    "decoding drops ids 1 and 2 when asked, writes out the other special entries, and ignores ids without an entry") {
  const Tokenizer tokenizer = small_tokenizer();
  CHECK(tokenizer.decode(Ids{2, 0, byte_id('x'), 1, 3, 2}) == "<s>x<unk>");
  CHECK(tokenizer.decode(Ids{2, 0, byte_id('x'), 1}, false) == "</s><s>x<pad>");
  CHECK(tokenizer.decode(Ids{260, 50271, 1 << 30}) == "");
  CHECK(tokenizer.bytes_of(2) == "</s>");
  CHECK(input_error([&] { tokenizer.decode(Ids{-1}); }) == "-1 is not a token id; ids are not negative");
}

TEST_CASE("decode_utf8 replaces what is not UTF-8") {
  const Tokenizer tokenizer = small_tokenizer();
  CHECK(tokenizer.decode_utf8(Ids{byte_id('\xE2'), byte_id('\x82'), byte_id('a')}) == "\uFFFDa");
  CHECK(tokenizer.decode_utf8(Ids{byte_id('\xE2'), byte_id('\x82'), byte_id('\xAC')}) == "\u20AC");
}

TEST_CASE("a stream decoder waits for whole code points and ends with decode_utf8's text") {
  const Tokenizer tokenizer = small_tokenizer();
  StreamDecoder decoder(tokenizer);
  CHECK(decoder.push(byte_id('a')) == "a");
  CHECK(decoder.push(byte_id('\xE2')) == "");
  CHECK(decoder.push(byte_id('\x82')) == "");
  CHECK(decoder.push(byte_id('\xAC')) == "\u20AC");
  CHECK(decoder.push(byte_id('\xF0')) == "");
  CHECK(decoder.push(byte_id('x')) == "\uFFFDx");
  CHECK(decoder.push(2) == "");
  CHECK(decoder.push(byte_id('\xC3')) == "");
  CHECK(decoder.finish() == "\uFFFD");
  CHECK(decoder.finish() == "");
  for (uint64_t sample = 0; sample < 500; ++sample) {
    const Ids ids = tokenizer.encode(random_bytes(sample, 40, 256));
    std::string joined;
    for (const int32_t id : ids) joined += decoder.push(id);
    joined += decoder.finish();
    if (joined != tokenizer.decode_utf8(ids)) FAIL_CHECK("sample " << sample);
  }
}

TEST_CASE("threads encode with one tokenizer at once") {
  const Tokenizer tokenizer = small_tokenizer({{"a", "b"}, {"ab", "c"}});
  const std::string text = "abc abab cab abcabc";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) wrong[t] += tokenizer.encode(text) != expected ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("merges whose text begins with '#' count, and only a first line #version is skipped") {
  const std::vector<std::pair<std::string, std::string>> merges = {{"#", "#"}, {"#v", "e"}, {"#", "v"}};
  const std::string vocabulary = small_vocabulary(merges).dump();
  const Tokenizer with = Tokenizer::from_texts(vocabulary, small_merges(merges), "F");
  CHECK(with.encode("##") == Ids{260});
  CHECK(with.encode("#") == Ids{byte_id('#')});
  const Tokenizer without = Tokenizer::from_texts(vocabulary, "# #\r\n#v e\r\n# v\r\n", "F");
  CHECK(without.encode("##") == Ids{260});
  CHECK(without.merges_txt() == "# #\r\n#v e\r\n# v\r\n");
  CHECK(without.vocab_json() == vocabulary);
}

TEST_CASE("damaged merges say what is wrong and where") {
  const Json vocabulary = small_vocabulary({{"a", "b"}});
  const std::string remedy = "; give the merges.txt that belongs to the vocabulary";
  CHECK(error_of(vocabulary, "#version: 0.2\na b\nab\n") ==
        "F: merges.txt: line 3 is \"ab\", not two symbols with one space between them" + remedy);
  CHECK(error_of(vocabulary, "a b\n\n") ==
        "F: merges.txt: line 2 is \"\", not two symbols with one space between them" + remedy);
  CHECK(error_of(vocabulary, "a b c") ==
        "F: merges.txt: line 1 is \"a b c\", not two symbols with one space between them" + remedy);
  CHECK(error_of(vocabulary, "a \n") ==
        "F: merges.txt: line 1 is \"a \", not two symbols with one space between them" + remedy);
  CHECK(error_of(vocabulary, "a c\n") == "F: merges.txt: line 1 (\"a c\"): \"ac\" is not in the vocabulary" + remedy);
  CHECK(error_of(vocabulary, "xy b\n") == "F: merges.txt: line 1 (\"xy b\"): \"xy\" is not in the vocabulary" + remedy);
  CHECK(error_of(vocabulary, "a b\na b\n") == "F: merges.txt: line 2 (\"a b\") appears twice");
  CHECK(error_of(small_vocabulary({{"<", "/s"}, {"/", "s"}}), "/ s\n< /s\n</s >\n") ==
        "F: merges.txt: line 3 (\"</s >\") makes a special token out of text");
}

TEST_CASE("damaged vocabularies say what is wrong and where") {
  Json vocabulary = small_vocabulary();
  CHECK(input_error([] { Tokenizer::from_texts("[1]", "", "F"); }) ==
        "F: vocab.json: expected an object of token: id but found an array");
  CHECK(input_error([] {
          Tokenizer::from_texts("{\"a\": 1", "", "F");
        }).starts_with("F: vocab.json: not valid JSON at byte"));
  CHECK(error_of(Json(vocabulary).set("x", "y"), "") == "F: vocab.json: the id of \"x\" is a string, not an integer");
  CHECK(error_of(Json(vocabulary).set("x", -1), "") ==
        "F: vocab.json: the id of \"x\" is -1; ids go from 0 to 16777215");
  CHECK(error_of(Json(vocabulary).set("x", int64_t{1} << 40), "") ==
        "F: vocab.json: the id of \"x\" is 1099511627776; ids go from 0 to 16777215");
  CHECK(error_of(Json(vocabulary).set("zz", 7), "") == "F: vocab.json: \"zz\" and \"\u0103\" share the id 7");
  const std::string remedy =
      "; give the tokenizer of an OPT model (GPT-2's own vocab.json numbers the same tokens differently)";
  CHECK(error_of(Json(vocabulary).set("</s>", 400), "") ==
        "F: vocab.json: \"</s>\" has the id 400 but must have the id 2" + remedy);
  CHECK(input_error([] { Tokenizer::from_texts("{\"a\": 0}", "", "F"); }) ==
        "F: vocab.json: \"<pad>\" has no entry but must have the id 1" + remedy);
  Json without_space = Json::object();
  for (const auto& [key, id] : vocabulary.as_object())
    if (key != "\u0120") without_space.set(key, id);
  CHECK(error_of(without_space, "") ==
        "F: vocab.json: the byte 0x20 has no entry (\"\u0120\"); a byte-level vocabulary has one for each of the 256 "
        "bytes");
}

TEST_CASE("an id that no entry has is a hole, not an error") {
  const Tokenizer tokenizer = Tokenizer::from_texts(Json(small_vocabulary()).set("<mask>", 500).dump(), "", "F");
  CHECK(tokenizer.size() == 501);
  CHECK(tokenizer.bytes_of(400).empty());
  CHECK(tokenizer.bytes_of(500) == "<mask>");
}

TEST_CASE("load reads vocab.json and merges.txt, or tokenizer.json, and names what is missing") {
  const TemporaryFolder folder;
  CHECK(input_error([] { Tokenizer::load("/nowhere"); }) ==
        "/nowhere: not a folder; give the folder that holds the tokenizer's files");
  CHECK(input_error([&] { Tokenizer::load(folder.path); }) ==
        folder.path +
            ": there is no tokenizer here; the folder must hold vocab.json and merges.txt, or tokenizer.json");
  folder.file("tokenizer.json", tokenizer_json().dump());
  const Tokenizer from_json = Tokenizer::load(folder.path);
  CHECK(from_json.encode("ab ab") == Ids{260, 261});
  CHECK(from_json.bytes_of(300) == "<mask>");
  const Tokenizer again = Tokenizer::from_texts(from_json.vocab_json(), from_json.merges_txt(), "model file");
  CHECK(again.encode("ab ab") == Ids{260, 261});
  CHECK(again.size() == 301);
  folder.file("vocab.json", small_vocabulary().dump());
  CHECK(input_error([&] { Tokenizer::load(folder.path); }).find("merges.txt: cannot open the file") !=
        std::string::npos);
  folder.file("merges.txt", "");
  CHECK(Tokenizer::load(folder.path).encode("ab") == Ids{byte_id('a'), byte_id('b')});
}

TEST_CASE("a tokenizer.json of many added tokens is read in time that grows with their number") {
  const TemporaryFolder folder;
  Json json = tokenizer_json();
  std::string added;
  for (int id = 300; id < 60'300; ++id)
    added += fmt::format("{}{{\"id\":{},\"content\":\"t{}\"}}", added.empty() ? "" : ",", id, id);
  json.set("added_tokens", parse_json("[" + added + "]", "added"));
  folder.file("tokenizer.json", json.dump());
  const std::clock_t start = std::clock();
  CHECK(Tokenizer::load(folder.path).size() == 60'300);
  // Quadratic work takes more than 20 seconds; the bound leaves room for sanitizers.
  CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 8);
}

TEST_CASE("a tokenizer.json of another kind is refused by name") {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::function<void(Json&)>& change) {
    Json json = tokenizer_json();
    change(json);
    folder.file("tokenizer.json", json.dump());
    const std::string message = input_error([&] { Tokenizer::load(folder.path); });
    const std::string prefix = folder.path + "/tokenizer.json: ";
    CHECK(message.starts_with(prefix));
    return message.substr(std::min(message.size(), prefix.size()));
  };
  const auto model = [](Json& json) -> Json& { return const_cast<Json&>(json.at("model")); };
  const auto pre = [](Json& json) -> Json& { return const_cast<Json&>(json.at("pre_tokenizer")); };
  const std::string remedy = "; give a byte-level BPE tokenizer";
  CHECK(error_with([&](Json& j) { model(j).set("type", "Unigram"); }) ==
        "the model is of type \"Unigram\"; only BPE is supported" + remedy);
  CHECK(error_with([&](Json& j) { pre(j).set("type", "Metaspace"); }) ==
        "the pre_tokenizer is of type \"Metaspace\"; only ByteLevel is supported" + remedy);
  CHECK(error_with([&](Json& j) { pre(j).set("add_prefix_space", true); }) ==
        "the pre_tokenizer has add_prefix_space true; only false is supported");
  CHECK(error_with([&](Json& j) { pre(j).set("use_regex", false); }) ==
        "\"use_regex\" is false; only true is supported" + remedy);
  CHECK(error_with([&](Json& j) { j.set("pre_tokenizer", Json()); }) == "\"pre_tokenizer\" is missing");
  CHECK(error_with([&](Json& j) { j.set("normalizer", "NFC"); }) ==
        "\"normalizer\" is \"NFC\"; only null is supported" + remedy);
  CHECK(error_with([&](Json& j) { model(j).set("byte_fallback", true); }) ==
        "\"byte_fallback\" is true; only false is supported" + remedy);
  CHECK(error_with([&](Json& j) { model(j).set("end_of_word_suffix", "</w>"); }) ==
        "\"end_of_word_suffix\" is \"</w>\"; only \"\" is supported" + remedy);
  CHECK(error_with([&](Json& j) { model(j).set("dropout", 0.1); }) ==
        "\"dropout\" is 0.1; only 0.0 is supported" + remedy);
  CHECK(error_with([&](Json& j) { model(j).set("merges", Json(Json::Array{Json(1)})); }) ==
        "the merge 1 is neither \"left right\" nor [\"left\", \"right\"]");
  CHECK(error_with([&](Json& j) { model(j).set("vocab", Json()); }) == "\"vocab\" is missing");
  CHECK(error_with([&](Json& j) {
          Json clash = Json::object();
          clash.set("id", 9).set("content", "</s>");
          j.set("added_tokens", Json(Json::Array{clash}));
        }) == "the added token \"</s>\" has the id 9 but the vocabulary gives 2");
}
