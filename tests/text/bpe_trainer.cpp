#include "text/bpe_trainer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace tercet {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

TEST_CASE("merges come by frequency, and equally frequent pairs in byte order") {
  BpeTrainer trainer;
  // Pre-tokens "low" 3, " low" 2, "xy" 4, " ab" 4; pairs lo 5, ow 5, xy 4, " a" 4, ab 4, " l" 2.
  for (const char* text : {"low low", "low low", "low", "xy ab", "xy ab", "xy ab", "xy ab"}) trainer.add(text);
  const auto merges = lines_of(trainer.train(266).merges_txt);
  const std::vector<std::string> expected = {"#version: 0.2", "l o", "lo w", "Ġ a", "Ġa b", "x y", "Ġ low"};
  CHECK(merges == expected);
}

TEST_CASE("the first 260 entries are the special tokens and the bytes in order") {
  BpeTrainer trainer;
  const Json vocab = parse_json(trainer.train(260).vocab_json, "vocab.json");
  REQUIRE(vocab.as_object().size() == 260);
  CHECK(vocab.at("<s>").as_int() == 0);
  CHECK(vocab.at("<pad>").as_int() == 1);
  CHECK(vocab.at("</s>").as_int() == 2);
  CHECK(vocab.at("<unk>").as_int() == 3);
  CHECK(vocab.at("A").as_int() == 4 + 'A');
  CHECK(vocab.at("Ġ").as_int() == 4 + ' ');
}

TEST_CASE("overlapping pairs in a run of one letter are merged from the left") {
  BpeTrainer trainer;
  trainer.add("aaaaaa");
  const BpeFiles files = trainer.train(262);
  CHECK(lines_of(files.merges_txt) == std::vector<std::string>{"#version: 0.2", "a a", "aa aa"});
}

TEST_CASE("no merge crosses a pre-token") {
  BpeTrainer trainer;
  for (int i = 0; i < 9; ++i) trainer.add("a b");
  CHECK(lines_of(trainer.train(261).merges_txt) == std::vector<std::string>{"#version: 0.2", "Ġ b"});
  CHECK_THROWS_AS(trainer.train(262), Error);
}

TEST_CASE("the order of the texts does not matter") {
  const std::vector<std::string> texts = {"the cat is called Mia", "the dog is called Rex", "what is the cat called?"};
  BpeTrainer forward, backward;
  for (size_t i = 0; i < texts.size(); ++i) {
    forward.add(texts[i]);
    backward.add(texts[texts.size() - 1 - i]);
  }
  const BpeFiles a = forward.train(280), b = backward.train(280);
  CHECK(a.vocab_json == b.vocab_json);
  CHECK(a.merges_txt == b.merges_txt);
}

TEST_CASE("a trained tokenizer loads, uses its merges and round trips") {
  BpeTrainer trainer;
  const std::string text = "\n\nHuman: The cat is called Mia.\n\nAssistant: caf\xC3\xA9 \xF0\x9F\x98\x80";
  for (int i = 0; i < 5; ++i) trainer.add(text);
  const BpeFiles files = trainer.train(290);
  const Tokenizer tokenizer = Tokenizer::from_texts(files.vocab_json, files.merges_txt, "test");
  CHECK(tokenizer.size() == 290);
  const auto ids = tokenizer.encode(text);
  CHECK(ids.size() < text.size() / 2);
  CHECK(tokenizer.decode(ids, false) == text);
}

TEST_CASE("fewer than 260 entries are refused") { CHECK_THROWS_AS(BpeTrainer().train(259), Error); }

}  // namespace
}  // namespace tercet
