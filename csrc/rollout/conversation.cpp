#include "rollout/conversation.h"

#include "base/error.h"
#include "rollout/text_generation.h"

namespace tercet {

Conversation::Conversation(Tokenizer tokenizer, PromptTemplate prompt_template, int64_t max_prompt_tokens)
    : tokenizer_(std::move(tokenizer)), prompt_template_(prompt_template), max_prompt_tokens_(max_prompt_tokens) {}

std::string Conversation::text_from(size_t first, std::string_view text) const {
  const bool raw = prompt_template_ == PromptTemplate::none;
  std::string all;
  for (size_t i = first; i < exchanges_.size(); ++i) {
    const Exchange& exchange = exchanges_[i];
    all += raw ? exchange.text + exchange.answer : human_turn(exchange.text) + assistant_turn(exchange.answer);
  }
  return all + apply_template(prompt_template_, text);
}

Conversation::Question Conversation::ask(std::string_view text) {
  for (size_t first = first_; first <= exchanges_.size(); ++first) {
    const std::string all = text_from(first, text);
    Prompt prompt = text_prompts(tokenizer_, {&all, 1}, PromptTemplate::none).front();
    if (prompt.token_count() > max_prompt_tokens_) {
      if (first < exchanges_.size()) continue;
      fail_input(
          fmt::format("the text has {} tokens; a prompt has at most {}", prompt.token_count(), max_prompt_tokens_), "",
          "shorten it");
    }
    const auto dropped = static_cast<int64_t>(first - first_);
    first_ = first;
    return {std::move(prompt), dropped};
  }
  TERCET_REQUIRE(false, "the exchanges of a prompt begin beyond the last one");
}

void Conversation::add(std::string text, std::string answer) {
  exchanges_.push_back({std::move(text), std::move(answer)});
}

void Conversation::clear() {
  exchanges_.clear();
  first_ = 0;
}

Json Conversation::record() const {
  Json record = Json::object();
  if (prompt_template_ == PromptTemplate::none) return record.set("text", text_from(0, ""));
  Json messages = Json::array();
  const auto add_message = [&](const char* role, const std::string& content) {
    Json message = Json::object();
    messages.push_back(message.set("role", role).set("content", std::string(strip_spaces(content))));
  };
  for (const Exchange& exchange : exchanges_) {
    add_message("user", exchange.text);
    add_message("assistant", exchange.answer);
  }
  return record.set("messages", std::move(messages));
}

}  // namespace tercet
