#include <doctest/doctest.h>

#include "base/error.h"
#include "data/records.h"
#include "rollout/conversation.h"
#include "text/small_tokenizer.h"

namespace tercet::testing {
namespace {

std::string said_before(const Conversation::Question& question) { return question.prompt.text; }

TEST_CASE("a prompt is the history in the template of the records and one sequence of ids") {
  const Tokenizer tokenizer = small_tokenizer({{"t", "\n"}, {"\n", "\n"}});
  Conversation conversation(tokenizer, PromptTemplate::human_assistant, 1000);
  CHECK(said_before(conversation.ask(" Hi ")) == "\n\nHuman: Hi\n\nAssistant:");
  conversation.add(" Hi ", "What");
  const Conversation::Question second = conversation.ask("Why?");
  CHECK(second.prompt.text == "\n\nHuman: Hi\n\nAssistant: What\n\nHuman: Why?\n\nAssistant:");
  std::vector<int32_t> ids = tokenizer.encode(second.prompt.text);
  ids.insert(ids.begin(), Tokenizer::end_id);
  CHECK(second.prompt.ids == ids);
  CHECK(second.dropped == 0);
  conversation.clear();
  CHECK(conversation.empty());
  CHECK(said_before(conversation.ask("Hi")) == "\n\nHuman: Hi\n\nAssistant:");
}

TEST_CASE("without a template what was typed and answered is joined as it is") {
  Conversation conversation(small_tokenizer(), PromptTemplate::none, 1000);
  conversation.add("Once ", "upon\n");
  CHECK(said_before(conversation.ask(" a")) == "Once upon\n a");
  CHECK(conversation.record().dump() == R"({"text":"Once upon\n"})");
}

TEST_CASE("the oldest exchanges leave a prompt that is too long, for good, and stay in the record") {
  // One id per byte: an exchange of n and m bytes has n + m.
  Conversation conversation(small_tokenizer(), PromptTemplate::none, 13);
  conversation.add("aaa", "AAA");
  conversation.add("bb", "BB");
  CHECK(conversation.ask("cc").prompt.text == "aaaAAAbbBBcc");  // with id 2, 13
  const Conversation::Question longer = conversation.ask("ccc");
  CHECK(longer.prompt.text == "bbBBccc");
  CHECK(longer.dropped == 1);
  const Conversation::Question again = conversation.ask("cc");
  CHECK(again.prompt.text == "bbBBcc");
  CHECK(again.dropped == 0);
  CHECK(conversation.ask("cccccccccccc").dropped == 1);
  CHECK(conversation.ask("c").prompt.text == "c");
  CHECK(conversation.record().dump() == R"({"text":"aaaAAAbbBB"})");
}

TEST_CASE("a text that is too long by itself is refused and the history stays") {
  Conversation conversation(small_tokenizer(), PromptTemplate::none, 5);
  conversation.add("a", "b");
  CHECK_THROWS_WITH_AS(conversation.ask("12345"), "the text has 6 tokens; a prompt has at most 5; shorten it", Error);
  CHECK(conversation.ask("c").prompt.text == "abc");
}

TEST_CASE("the record of a dialogue is read back as its turns") {
  Conversation conversation(small_tokenizer(), PromptTemplate::human_assistant, 1000);
  conversation.add("Hi \"you\"", "What");
  conversation.add("Why\nso?", "caf\xC3\xA9");
  const Record record = parse_record(conversation.record().dump(), "here", {});
  CHECK(record.form == Record::Form::messages);
  REQUIRE(record.completions.size() == 2);
  CHECK(record.completions[1].prompt == "\n\nHuman: Hi \"you\"\n\nAssistant: What\n\nHuman: Why\nso?\n\nAssistant:");
  CHECK(record.completions[1].answer == " caf\xC3\xA9");
  const std::string prompt = record.completions[1].prompt;
  Conversation first(small_tokenizer(), PromptTemplate::human_assistant, 1000);
  first.add("Hi \"you\"", "What");
  CHECK(first.ask("Why\nso?").prompt.text == prompt);
}

}  // namespace
}  // namespace tercet::testing
