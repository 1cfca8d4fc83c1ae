#include "data/records.h"

#include <doctest/doctest.h>

#include <string>

#include "data/data_files.h"

using namespace tercet;
using namespace tercet::testing;

namespace {

Record parse(const std::string& line, const RecordOptions& options = {}) { return parse_record(line, "F:1", options); }

std::string error_of(const std::string& line, const RecordOptions& options = {}) {
  return DataFolder().input_error([&] { parse(line, options); });
}

RecordOptions wrapping() { return {PromptTemplate::human_assistant, {}, false}; }

}  // namespace

TEST_CASE("templates are known by name") {
  CHECK(parse_prompt_template("none") == PromptTemplate::none);
  CHECK(parse_prompt_template("human-assistant") == PromptTemplate::human_assistant);
  CHECK(prompt_template_name(PromptTemplate::human_assistant) == "human-assistant");
  CHECK(DataFolder().input_error([] { parse_prompt_template("chatml"); }) ==
        "--template: \"chatml\" is not a template; use none or human-assistant");
}

TEST_CASE("an answer has exactly one leading space and no trailing ones") {
  CHECK(answer_text("yes") == " yes");
  CHECK(answer_text("   yes\n \t") == " yes");
  CHECK(answer_text("\n\u00A0yes\u3000") == " yes");
  CHECK(answer_text(" a  b ") == " a  b");
  CHECK(answer_text(" \n ") == "");
  CHECK(answer_text("") == "");
}

TEST_CASE("turns have one form") {
  CHECK(human_turn(" Hi\n") == "\n\nHuman: Hi");
  CHECK(assistant_turn(" Hello \n") == "\n\nAssistant: Hello");
  CHECK(assistant_turn("") == "\n\nAssistant:");
  CHECK(apply_template(PromptTemplate::human_assistant, "Hi ") == "\n\nHuman: Hi\n\nAssistant:");
  CHECK(apply_template(PromptTemplate::none, " Hi ") == " Hi ");
}

TEST_CASE("the first human turn is found in every form of prompt") {
  CHECK(first_human_turn("\n\nHuman: one\n\nAssistant: two\n\nHuman: three\n\nAssistant:") == "one");
  CHECK(first_human_turn("\n\nHuman: one") == "one");
  CHECK(first_human_turn("  one ") == "one");
  CHECK(first_human_turn("") == "");
}

TEST_CASE("a pair with a prompt keeps the prompt as it is") {
  const Record record = parse(R"({"prompt": "Q: 1+1? ", "chosen": "2", "rejected": "  3 \n"})");
  CHECK(record.form == Record::Form::pair);
  CHECK(record.completions.size() == 2);
  CHECK(record.completions[0].prompt == "Q: 1+1? ");
  CHECK(record.completions[0].answer == " 2");
  CHECK(record.completions[1].prompt == "Q: 1+1? ");
  CHECK(record.completions[1].answer == " 3");
}

TEST_CASE("a pair of whole dialogues is split after the last assistant mark") {
  const Record record = parse(R"({"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d",
      "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"})");
  CHECK(record.completions[0].prompt == "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:");
  CHECK(record.completions[0].answer == " d");
  CHECK(record.completions[1].prompt == record.completions[0].prompt);
  CHECK(record.completions[1].answer == "");
  CHECK(record.split_key() == "a");
}

TEST_CASE("the template wraps prompt fields and leaves dialogues alone") {
  CHECK(parse(R"({"prompt": "Hi", "response": "Ho"})", wrapping()).completions[0].prompt ==
        "\n\nHuman: Hi\n\nAssistant:");
  CHECK(parse(R"({"prompt": "Hi"})", wrapping()).open_prompt == "\n\nHuman: Hi\n\nAssistant:");
  CHECK(parse(R"({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"})", wrapping())
            .completions[0]
            .prompt == "\n\nHuman: a\n\nAssistant:");
  CHECK(error_of(R"({"prompt": "\n\nHuman: Hi\n\nAssistant:"})", wrapping()) ==
        "F:1: the field \"prompt\" is in the human-assistant form already; use --template none");
}

TEST_CASE("messages give a completion per assistant turn, each with the history as text") {
  const Record record =
      parse(R"({"messages": [{"role": "user", "content": "a "}, {"role": "assistant", "content": "b\n"},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})");
  CHECK(record.form == Record::Form::messages);
  CHECK(record.completions.size() == 2);
  CHECK(record.completions[0].prompt == "\n\nHuman: a\n\nAssistant:");
  CHECK(record.completions[0].answer == " b");
  CHECK(record.completions[1].prompt == "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:");
  CHECK(record.completions[1].answer == " d");
  CHECK_FALSE(record.open_prompt.has_value());
  CHECK(record.split_key() == "a");
}

TEST_CASE("messages that end with a user turn leave an open prompt") {
  const Record record = parse(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}]})");
  CHECK(record.completions.size() == 1);
  CHECK(record.open_prompt == "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:");
}

TEST_CASE("text and ids are taken as they are") {
  CHECK(parse(R"({"text": " a\u0000\n "})").text == std::string(" a\0\n ", 5));
  const Record record = parse(R"({"ids": [2, 5, 2147483647]})", {PromptTemplate::none, {}, true});
  CHECK(record.form == Record::Form::ids);
  CHECK(record.ids == std::vector<int32_t>{2, 5, 2147483647});
}

TEST_CASE("fields may have other names, and further fields are ignored") {
  const RecordOptions options{PromptTemplate::none, parse_field_names("prompt=question,response=answer"), false};
  const Record record = parse(R"({"prompt": 7, "question": "q", "answer": "a", "id": 3})", options);
  CHECK(record.form == Record::Form::response);
  CHECK(record.completions[0].prompt == "q");
  CHECK(record.completions[0].answer == " a");
  CHECK(parse(R"({"text": "whole", "prompt": "p", "response": "r"})").form == Record::Form::response);
  CHECK(parse(R"({"text": "whole", "chosen": "c", "rejected": "r", "prompt": "p", "response": "r"})").form ==
        Record::Form::pair);
}

TEST_CASE("--fields is checked") {
  const DataFolder folder;
  const std::string example = "; for example prompt=question,response=answer";
  CHECK(parse_field_names("").empty());
  CHECK(folder.input_error([] { parse_field_names("prompt"); }) == "--fields: \"prompt\" is not NAME=FIELD" + example);
  CHECK(folder.input_error([] { parse_field_names("prompt="); }) ==
        "--fields: \"prompt=\" is not NAME=FIELD" + example);
  CHECK(folder.input_error([] { parse_field_names("question=prompt"); }) ==
        "--fields: \"question\" is not a field of tercet; use prompt, chosen, rejected, response, messages, text, ids");
  CHECK(folder.input_error([] { parse_field_names("text=a,text=b"); }) == "--fields: \"text\" is named twice");
}

TEST_CASE("each kind of bad record says what is wrong and where") {
  CHECK(error_of("{\"text\": \"a\"").starts_with("F:1: not valid JSON at byte"));
  CHECK(error_of("{\"text\": \"a\xFF\"}").starts_with("F:1: not valid JSON at byte"));
  CHECK(error_of("{\"text\": \"\\ud800\"}").starts_with("F:1: not valid JSON at byte"));
  CHECK(error_of("{\"text\": \"a\", \"text\": \"b\"}") == "F:1: the key \"text\" appears twice");
  CHECK(error_of("[1]") == "F:1: expected an object but found an array");
  CHECK(error_of(R"({"question": "q", "answer": "a"})") ==
        "F:1: no field that tercet knows among \"question\", \"answer\"; expected prompt and response, prompt, chosen "
        "and "
        "rejected, messages, or text; name other fields with --fields");
  CHECK(error_of(R"({"chosen": "a"})") ==
        "F:1: the dialogue \"chosen\" has no \"\\n\\nAssistant:\"; give whole dialogues, or a prompt field too");
  CHECK(error_of(R"({"prompt": "p", "chosen": "a"})") == "F:1: the field \"rejected\" is missing");
  CHECK(error_of(R"({"response": "a"})") == "F:1: the field \"prompt\" is missing");
  CHECK(error_of(R"({"prompt": null, "response": "a"})") == "F:1: the field \"prompt\" is null, not a string");
  CHECK(error_of(R"({"text": 3})") == "F:1: the field \"text\" is an integer, not a string");
  CHECK(error_of(R"({"prompt": "p", "chosen": "\n\nHuman: p\n\nAssistant: a", "rejected": "b"})") ==
        "F:1: \"chosen\" holds a whole dialogue although the record has a prompt; give answers beside a prompt, or "
        "dialogues without one");
  CHECK(error_of(R"({"messages": {}})") == "F:1: the field \"messages\" is an object, not an array");
  CHECK(error_of(R"({"messages": []})") == "F:1: the field \"messages\" is empty");
  CHECK(error_of(R"({"messages": [{"role": "user"}]})") == "F:1: message 1 has no \"content\"");
  CHECK(error_of(R"({"messages": [{"role": "user", "content": ["x"]}]})") ==
        "F:1: the content of message 1 is an array, not a string");
  CHECK(error_of(R"({"messages": [{"role": "system", "content": "x"}]})") ==
        "F:1: message 1 has the role \"system\" where \"user\" is expected; roles alternate between user and "
        "assistant, and "
        "user begins");
  CHECK(error_of(R"({"ids": [1]})") ==
        "F:1: no field that tercet knows among \"ids\"; expected prompt and response, prompt, chosen and rejected, "
        "messages, "
        "or text; name other fields with --fields");
  const RecordOptions with_ids{PromptTemplate::none, {}, true};
  CHECK(error_of(R"({"ids": []})", with_ids) == "F:1: the field \"ids\" is not an array of at least one id");
  CHECK(error_of(R"({"ids": [-1]})", with_ids) == "F:1: -1 is not a token id");
  CHECK(error_of(R"({"ids": [2147483648]})", with_ids) == "F:1: 2147483648 is not a token id");
  CHECK(error_of(R"({"ids": ["a"]})", with_ids) == "F:1: \"a\" is not a token id");
}
