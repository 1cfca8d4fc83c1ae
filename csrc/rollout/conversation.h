// A dialogue with a model: what was said so far, and the prompt that it becomes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/dataset.h"
#include "data/dialogue.h"
#include "text/tokenizer.h"

namespace tercet {

class Conversation {
 public:
  // A prompt has at most `max_prompt_tokens` ids, its id 2 included.
  Conversation(Tokenizer tokenizer, PromptTemplate prompt_template, int64_t max_prompt_tokens);

  struct Question {
    Prompt prompt;
    int64_t dropped = 0;  // exchanges that had to leave the prompt, this and all later ones
  };

  // The prompt for an answer to `text`: id 2 and the exchanges so far with `text`, encoded as one text. Under
  // human_assistant that is the prompt of a record of {"messages"}; under none all that was typed and answered, joined
  // as it is. The oldest exchanges leave the prompt when it is too long. Throws Error(Fault::input) when `text` alone
  // is too long; then none leaves.
  Question ask(std::string_view text);

  // Ends the exchange that ask() began.
  void add(std::string text, std::string answer);

  bool empty() const { return exchanges_.empty(); }
  void clear();

  // The whole dialogue, with what left the prompt, as a record that `sft` reads: {"messages"}, or {"text"} under none.
  Json record() const;

 private:
  struct Exchange {
    std::string text, answer;
  };

  std::string text_from(size_t first, std::string_view text) const;

  Tokenizer tokenizer_;
  PromptTemplate prompt_template_;
  int64_t max_prompt_tokens_;
  std::vector<Exchange> exchanges_;
  size_t first_ = 0;  // of the exchanges in the prompt
};

}  // namespace tercet
