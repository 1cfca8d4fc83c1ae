#include "demo/checker.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"

namespace tercet::demo {

namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n") - first + 1);
}

// Sentences with their final mark; a last piece without one is kept as it is.
std::vector<std::string_view> sentences(std::string_view text) {
  std::vector<std::string_view> result;
  while (!(text = trimmed(text)).empty()) {
    const size_t mark = text.find_first_of(".!?");
    const size_t end = mark == std::string_view::npos ? text.size() : mark + 1;
    result.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return result;
}

// Splits at every ", and ", " and " and ", ".
std::vector<std::string_view> clauses(std::string_view sentence) {
  std::vector<std::string_view> result;
  while (true) {
    size_t cut = std::string_view::npos, width = 0;
    for (const std::string_view joint : {", and ", " and ", ", "}) {
      const size_t at = sentence.find(joint);
      if (at < cut) cut = at, width = joint.size();
    }
    result.push_back(sentence.substr(0, cut));
    if (cut == std::string_view::npos) return result;
    sentence.remove_prefix(cut + width);
  }
}

std::string_view without_mark(std::string_view sentence) { return sentence.substr(0, sentence.size() - 1); }

// The human turns of a prompt, one after the other, without "Human:" and the assistant's turns; a prompt that is not in
// dialogue form is one turn.
std::vector<std::string_view> human_turns(std::string_view prompt) {
  constexpr std::string_view human = "\n\nHuman:", assistant = "\n\nAssistant:";
  std::vector<std::string_view> turns;
  if (prompt.find(human) == std::string_view::npos) turns.push_back(prompt);
  for (size_t at = prompt.find(human); at != std::string_view::npos; at = prompt.find(human, at + 1)) {
    const std::string_view turn = prompt.substr(at + human.size());
    turns.push_back(turn.substr(0, turn.find(assistant)));
  }
  return turns;
}

const Filler* find_filler(std::string_view sentence) {
  const auto found =
      std::find_if(fillers().begin(), fillers().end(), [&](const Filler& filler) { return filler.text == sentence; });
  return found == fillers().end() ? nullptr : &*found;
}

}  // namespace

std::optional<Fact> expected_answer(std::string_view prompt) {
  std::vector<Fact> facts;
  std::optional<Question> question;
  for (const std::string_view turn : human_turns(prompt)) {
    question.reset();
    for (const std::string_view sentence : sentences(turn)) {
      if (sentence.ends_with('?')) {
        question = parse_question(sentence);
      } else {
        for (const std::string_view piece : clauses(without_mark(sentence)))
          if (const auto fact = parse_clause(piece)) facts.push_back(*fact);
      }
    }
  }
  if (!question) return std::nullopt;
  const auto answer = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) {
    return fact.relation == question->relation && fact.subject == question->subject;
  });
  if (answer == facts.end()) return std::nullopt;
  return *answer;
}

Verdict check(std::string_view prompt, std::string_view response) {
  const auto expected = expected_answer(prompt);
  if (!expected)
    fail_input("the prompt asks for no fact that it states", std::string(prompt),
               "check answers to the demo's own prompts (demo_dialogues --out DIR)");
  Verdict verdict;
  int stated = 0, right = 0, unknown = 0;
  for (const std::string_view sentence : sentences(response)) {
    if (const Filler* filler = find_filler(sentence)) {
      verdict.courteous |= filler->courteous;
      continue;
    }
    const auto fact = sentence.ends_with('.') ? parse_clause(without_mark(sentence)) : std::nullopt;
    stated += fact.has_value();
    unknown += !fact.has_value();
    right += fact == expected;
  }
  verdict.correct = stated == 1 && right == 1 && unknown == 0;
  return verdict;
}

}  // namespace tercet::demo
