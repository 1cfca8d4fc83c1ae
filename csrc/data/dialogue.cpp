#include "data/dialogue.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/unicode.h"

namespace tercet {

PromptTemplate parse_prompt_template(std::string_view name) {
  for (const PromptTemplate prompt_template : {PromptTemplate::none, PromptTemplate::human_assistant})
    if (prompt_template_name(prompt_template) == name) return prompt_template;
  fail_input(fmt::format("\"{}\" is not a template", name), "--template", "use none or human-assistant");
}

std::string_view prompt_template_name(PromptTemplate prompt_template) {
  return prompt_template == PromptTemplate::none ? "none" : "human-assistant";
}

std::string human_turn(std::string_view text) { return fmt::format("{} {}", human_mark, strip_spaces(text)); }

std::string assistant_turn(std::string_view text) { return std::string(assistant_mark) + answer_text(text); }

std::string answer_text(std::string_view text) {
  const std::string_view stripped = strip_spaces(text);
  return stripped.empty() ? std::string() : fmt::format(" {}", stripped);
}

std::string apply_template(PromptTemplate prompt_template, std::string_view text) {
  if (prompt_template == PromptTemplate::none) return std::string(text);
  return human_turn(text).append(assistant_mark);
}

std::string_view first_human_turn(std::string_view prompt) {
  const size_t mark = prompt.find(human_mark);
  if (mark == std::string_view::npos) return strip_spaces(prompt);
  prompt.remove_prefix(mark + human_mark.size());
  return strip_spaces(prompt.substr(0, prompt.find(assistant_mark)));
}

}  // namespace tercet
