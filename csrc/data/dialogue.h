// The text form of a dialogue: how turns become a prompt and an answer.
#pragma once

#include <string>
#include <string_view>

namespace tercet {

// How a "prompt" field becomes the prompt of a sequence.
enum class PromptTemplate {
  none,             // as it is
  human_assistant,  // "\n\nHuman: <field>\n\nAssistant:"
};

// "none" and "human-assistant", as in --template and in model files. Throws Error(Fault::input) on another name.
PromptTemplate parse_prompt_template(std::string_view name);
std::string_view prompt_template_name(PromptTemplate prompt_template);

// The mark after which an answer starts; every prompt of a dialogue ends with it.
constexpr std::string_view assistant_mark = "\n\nAssistant:";
constexpr std::string_view human_mark = "\n\nHuman:";

// "\n\nHuman: " and the text without surrounding spaces.
std::string human_turn(std::string_view text);

// "\n\nAssistant:" and answer_text(text).
std::string assistant_turn(std::string_view text);

// An answer as it is encoded: one space and the text without surrounding spaces; empty when nothing is left.
std::string answer_text(std::string_view text);

// The prompt of one human turn: under human_assistant human_turn(text) + assistant_mark, else the text as it is.
std::string apply_template(PromptTemplate prompt_template, std::string_view text);

// The first human turn of a prompt in dialogue form, without surrounding spaces; the whole text, without surrounding
// spaces, when it has no human mark.
std::string_view first_human_turn(std::string_view prompt);

}  // namespace tercet
