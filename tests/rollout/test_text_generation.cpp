#include <doctest/doctest.h>

#include <algorithm>

#include "rollout/small_model.h"
#include "rollout/text_generation.h"
#include "text/small_tokenizer.h"

namespace tercet::testing {
namespace {

// Feeds ids until a stop string is complete; returns how many were taken.
size_t feed(ResponseText& text, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (text.push(ids[i])) return i + 1;
  text.finish();
  return ids.size();
}

TEST_CASE("a stop string ends a text where it begins, wherever tokens are cut") {
  const Tokenizer tokenizer = small_tokenizer({{"d", "\n"}, {"\n", "H"}, {"\nH", "i"}});
  const auto ids = tokenizer.encode("good\n\nHi there");
  ResponseText text(tokenizer, {"\n\nH"});
  CHECK(feed(text, ids) < ids.size());
  CHECK(text.text() == "good");
  ResponseText inside(tokenizer, {"\nH"});  // ends inside the token "\nHi"
  feed(inside, ids);
  CHECK(inside.text() == "good\n");
}

TEST_CASE("of several stop strings the one that begins first counts, and none leaves the text whole") {
  const Tokenizer tokenizer = small_tokenizer({{"b", "c"}, {"a", "bc"}});
  const auto ids = tokenizer.encode("xabcx");
  ResponseText both(tokenizer, {"c", "ab"});
  feed(both, ids);
  CHECK(both.text() == "x");
  ResponseText absent(tokenizer, {"abd", "xx"});
  CHECK(feed(absent, ids) == ids.size());
  CHECK(absent.text() == "xabcx");
  ResponseText none(tokenizer, {});
  feed(none, ids);
  CHECK(none.text() == "xabcx");
}

TEST_CASE("special ids give no text and an unfinished code point becomes U+FFFD at the end") {
  const Tokenizer tokenizer = small_tokenizer();
  ResponseText text(tokenizer, {"\xC3\xA9"});
  const std::vector<int32_t> ids = {byte_id('a'), 1, byte_id('\xC3'), 2};
  CHECK(feed(text, ids) == 4);
  CHECK(text.text() == "a\xEF\xBF\xBD");
  ResponseText accent(tokenizer, {"\xC3\xA9"});
  const std::vector<int32_t> whole = {byte_id('a'), byte_id('\xC3'), byte_id('\xA9'), byte_id('b')};
  CHECK(feed(accent, whole) == 3);
  CHECK(accent.text() == "a");
}

TEST_CASE("pieces hold back what may become a stop string, and joined they are the text") {
  const Tokenizer tokenizer = small_tokenizer();
  ResponseText text(tokenizer, {"\n\nHuman:", "END"});
  std::string joined;
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer.encode("a\n\nHub\nEN\n\nHuman: x")) {
    const bool stopped = text.push(id);
    pieces.push_back(text.take());
    joined += pieces.back();
    CHECK(text.text().starts_with(joined));
    if (stopped) break;
  }
  CHECK(joined == "a\n\nHub\nEN");
  CHECK(joined == text.text());
  CHECK(pieces[1].empty());
  CHECK(pieces[5] == "\n\nHub");
  ResponseText unfinished(tokenizer, {"END"});
  for (const int32_t id : tokenizer.encode("xEN")) unfinished.push(id);
  CHECK(unfinished.take() == "x");
  unfinished.finish();
  CHECK(unfinished.take() == "EN");
}

TEST_CASE("a stop string that is empty or not UTF-8 is refused by the name of the flag") {
  const Tokenizer tokenizer = small_tokenizer();
  for (const char* stop : {"", "\xC3"}) {
    try {
      const ResponseText text(tokenizer, {stop});
      FAIL("nothing was refused");
    } catch (const Error& error) {
      CHECK(error.fault() == Fault::input);
      CHECK(std::string(error.what()).find("--stop") != std::string::npos);
    }
  }
}

TEST_CASE("a prompt is id 2 and the ids of its text in the template") {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<std::string> texts = {"Hi", ""};
  const auto plain = text_prompts(tokenizer, texts, PromptTemplate::none);
  REQUIRE(plain.size() == 2);
  CHECK(plain[0].ids == std::vector<int32_t>{2, byte_id('H'), byte_id('i')});
  CHECK(plain[1].ids == std::vector<int32_t>{2});
  CHECK(plain[1].sample == 1);
  const auto dialogue = text_prompts(tokenizer, texts, PromptTemplate::human_assistant);
  CHECK(dialogue[0].text == "\n\nHuman: Hi\n\nAssistant:");
  CHECK(tokenizer.decode(dialogue[0].ids) == dialogue[0].text);
}

// A model whose vocabulary is that of small_tokenizer().
struct TextModel {
  explicit TextModel(int64_t slots) : tokenizer(small_tokenizer()), small(config(), small_options(DType::f64, slots)) {}

  static OptConfig config() {
    OptConfig config = small_config("pre-LN");
    config.vocab_size = 260;
    return config;
  }

  std::vector<TextGeneration> generate(std::span<const Prompt> prompts, const TextGenerationOptions& options,
                                       const TextCallbacks& callbacks = {}) {
    return generate_texts(small.model.stream(), small.generator, tokenizer, prompts, options, callbacks);
  }

  Tokenizer tokenizer;
  SmallGenerator small;
};

TEST_CASE("texts come in the order of the prompts, one log-probability per token, whatever the slots") {
  const std::vector<std::string> texts = {"Hello", "", "What?", "x", "Why is it so?"};
  TextModel two(2), five(5);
  const auto prompts = text_prompts(two.tokenizer, texts, PromptTemplate::none);
  TextGenerationOptions options;
  options.max_new_tokens = 40;
  options.sampling.seed = 3;
  std::vector<size_t> order;
  std::vector<std::string> pieces(texts.size());
  TextCallbacks callbacks;
  callbacks.piece = [&](size_t prompt, std::string_view piece) { pieces.at(prompt) += piece; };
  callbacks.item = [&](size_t prompt, const TextGeneration& item) {
    order.push_back(prompt);
    CHECK(item.prompt == texts[prompt]);
    CHECK(item.ids.size() == item.log_probs.size());
    CHECK(item.response == pieces[prompt]);
  };
  const auto items = two.generate(prompts, options, callbacks);
  CHECK(order == std::vector<size_t>{0, 1, 2, 3, 4});
  const auto others = five.generate(prompts, options);
  for (size_t i = 0; i < texts.size(); ++i) {
    CHECK(items[i].response == two.tokenizer.decode_utf8(items[i].ids));
    CHECK(items[i].ids == others[i].ids);
    CHECK(items[i].response == others[i].response);
    CHECK(items[i].finish == others[i].finish);
  }
}

TEST_CASE("a stop string ends its response with finish stop and is not part of the text") {
  TextModel model(3);
  const std::vector<std::string> texts = {"Hello", "What?", "x"};
  const auto prompts = text_prompts(model.tokenizer, texts, PromptTemplate::none);
  TextGenerationOptions options;
  options.max_new_tokens = 60;
  const auto whole = model.generate(prompts, options);
  // A stop string from the middle of the first response: its first code point from byte 20 on.
  const std::string& response = whole[0].response;
  REQUIRE(response.size() > 30);
  size_t begin = 20;
  while ((response[begin] & 0xC0) == 0x80) ++begin;
  size_t end = begin + 1;
  while (end < response.size() && (response[end] & 0xC0) == 0x80) ++end;
  options.stops = {"not there", response.substr(begin, end - begin)};
  const auto stopped = model.generate(prompts, options);
  CHECK(stopped[0].finish == Finish::stopped);
  CHECK(finish_name(stopped[0].finish) == "stop");
  CHECK(stopped[0].response == response.substr(0, response.find(options.stops[1])));
  CHECK(stopped[0].ids.size() < whole[0].ids.size());
  CHECK(stopped[0].ids.size() == stopped[0].log_probs.size());
  for (size_t i = 1; i < texts.size(); ++i) {
    const size_t found = whole[i].response.find(options.stops[1]);
    CHECK(stopped[i].response == whole[i].response.substr(0, found));
    if (found == std::string::npos) CHECK(stopped[i].finish == whole[i].finish);
  }
}

}  // namespace
}  // namespace tercet::testing
