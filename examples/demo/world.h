// examples/demo: the small closed world of the demo's dialogues. A dialogue states facts ("the cat is called Mia") and
// asks for one; this header holds the words, the sentences made of them, and how a sentence is read back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tercet::demo {

// A kind of fact: a subject, a fixed middle and a value, each from a closed list.
struct Relation {
  std::vector<std::string> subjects;  // as inside a sentence: "the cat", "Tom"
  std::vector<std::string> values;    // "Mia"
  std::string middle;                 // " is called "
  std::string question_before;        // "What is "
  std::string question_after;         // " called?"
};

const std::vector<Relation>& relations();

// Indices into relations() and into the lists of that relation.
struct Fact {
  size_t relation = 0;
  size_t subject = 0;
  size_t value = 0;

  bool operator==(const Fact&) const = default;
};

// What is asked for: the value of `subject` in `relation`.
struct Question {
  size_t relation = 0;
  size_t subject = 0;

  bool operator==(const Question&) const = default;
};

// "the cat is called Mia", without a full stop.
std::string clause(const Fact& fact);

// "What is the cat called?"
std::string question_sentence(const Question& question);

// The text with its first letter in upper case.
std::string capitalised(std::string text);

// The reverse of clause(), whatever the case of the first letter; nothing when the text is no clause.
std::optional<Fact> parse_clause(std::string_view text);

// The reverse of question_sentence(), whatever the case of the first letter.
std::optional<Question> parse_question(std::string_view text);

// A sentence around the answer that carries no fact. Openers come before the answer, closers after it.
struct Filler {
  std::string text;  // with its final mark
  bool courteous = false;
  bool opener = true;
};

// Courteous and plain fillers have the same number of openers and of closers, with the same lengths in words and marks,
// so that length says nothing about courtesy.
const std::vector<Filler>& fillers();

// Words and marks of a text: the unit in which lengths are balanced. With the demo's tokenizer each is one token.
int length_in_words(std::string_view text);

// The prompt form of all dialogues: "\n\nHuman: <text>\n\nAssistant:".
std::string prompt_of(std::string_view human_turn);

}  // namespace tercet::demo
