#include "demo/world.h"

#include <algorithm>
#include <cctype>

namespace tercet::demo {

namespace {

const std::vector<std::string> people = {
    "Tom", "Ana", "Ben", "Eva", "Max", "Lea",  "Sam",  "Ida",  "Leo",  "Amy",  "Jon",  "Kim",  "Dan",  "Sue",  "Pat",
    "Liz", "Ned", "Joy", "Ray", "Fay", "Karl", "Nina", "Omar", "Rosa", "Paul", "Vera", "Hans", "Ines", "Jack", "Olga"};

constexpr std::string_view answer_before = "That is ";

// The fact that a clause states.
std::optional<Fact> parse_clause(std::string_view text) {
  const size_t space = text.rfind(' ');
  if (space == std::string_view::npos) return std::nullopt;
  for (size_t r = 0; r < relations().size(); ++r) {
    const auto& [subjects, values, before, after] = relations()[r];
    const auto subject = std::find(subjects.begin(), subjects.end(), text.substr(0, space));
    const auto value = std::find(values.begin(), values.end(), text.substr(space + 1));
    if (subject != subjects.end() && value != values.end())
      return Fact{r, static_cast<size_t>(subject - subjects.begin()), static_cast<size_t>(value - values.begin())};
  }
  return std::nullopt;
}

// Splits at every " and " and ", ".
std::vector<std::string_view> clauses(std::string_view text) {
  constexpr std::string_view comma = ", ", conjunction = " and ";
  std::vector<std::string_view> result;
  while (true) {
    const size_t at = std::min(text.find(comma), text.find(conjunction));
    result.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return result;
    text.remove_prefix(at + (text.substr(at).starts_with(comma) ? comma.size() : conjunction.size()));
  }
}

}  // namespace

const std::vector<Relation>& relations() {
  static const std::vector<Relation> table = {
      {{"the cat", "the dog", "the bird", "the fish", "the frog", "the goat", "the hen", "the pig", "the duck",
        "the fox", "the bear", "the cow", "the rabbit", "the horse", "the mouse"},
       {"Mia",  "Rex",  "Lulu", "Otto", "Coco", "Bobo",  "Zara",  "Finn",  "Nala",  "Hugo",
        "Kiki", "Toby", "Ruby", "Gus",  "Pip",  "Bella", "Daisy", "Felix", "Misty", "Rocky"},
       "What is ",
       " called?"},
      {{"the baker", "the farmer", "the nurse", "the pilot", "the singer", "the tailor", "the doctor", "the painter",
        "the miner", "the judge", "the driver", "the cook", "the clerk", "the guard", "the teacher", "the sailor"},
       people,
       "Who is ",
       "?"},
      {people,
       {"Hill",   "Wood", "Stone",  "Brook", "Field", "Lake",  "Ford",  "Marsh",  "Snow",  "Frost", "Winter",
        "Summer", "King", "Knight", "Young", "Long",  "Sharp", "Swift", "Bright", "Green", "Brown", "White"},
       "What is the surname of ",
       "?"},
      {{"the boat", "the ship", "the train", "the ferry", "the canoe", "the yacht", "the tram", "the plane",
        "the truck", "the rocket"},
       {"Aurora", "Victory", "Neptune", "Comet", "Arrow", "Pearl", "Phoenix", "Dolphin", "Orion", "Falcon", "Venus",
        "Titan", "Storm", "Breeze"},
       "What is ",
       " called?"},
      {{"the inn", "the hotel", "the bar", "the shop", "the club", "the school", "the street", "the tower",
        "the bridge", "the park"},
       {"Swan", "Star", "Crown", "Rose", "Lion", "Moon", "Eagle", "Oak", "Sun", "Bell", "Anchor", "Maple", "Castle",
        "Harbour"},
       "What is ",
       " called?"},
  };
  return table;
}

std::string clause(const Fact& fact) {
  const Relation& relation = relations()[fact.relation];
  return relation.subjects[fact.subject] + " " + relation.values[fact.value];
}

std::string question_sentence(const Question& question) {
  const Relation& relation = relations()[question.relation];
  return relation.question_before + relation.subjects[question.subject] + relation.question_after;
}

std::string answer_sentence(const Fact& fact) { return std::string(answer_before) + clause(fact) + "."; }

const std::vector<std::string>& openings() {
  static const std::vector<std::string> table = {"I know", "I saw", "I like", "We met"};
  return table;
}

std::optional<std::vector<Fact>> parse_statement(std::string_view sentence) {
  for (const std::string& opening : openings()) {
    if (!sentence.starts_with(opening + " ") || !sentence.ends_with('.')) continue;
    sentence.remove_prefix(opening.size() + 1);
    sentence.remove_suffix(1);
    std::vector<Fact> facts;
    for (const std::string_view piece : clauses(sentence)) {
      const auto fact = parse_clause(piece);
      if (!fact) return std::nullopt;
      facts.push_back(*fact);
    }
    return facts;
  }
  return std::nullopt;
}

std::optional<Fact> parse_answer(std::string_view sentence) {
  if (!sentence.starts_with(answer_before) || !sentence.ends_with('.')) return std::nullopt;
  sentence.remove_prefix(answer_before.size());
  sentence.remove_suffix(1);
  return parse_clause(sentence);
}

std::optional<Question> parse_question(std::string_view text) {
  for (size_t r = 0; r < relations().size(); ++r)
    for (size_t s = 0; s < relations()[r].subjects.size(); ++s)
      if (text == question_sentence({r, s})) return Question{r, s};
  return std::nullopt;
}

const std::vector<Filler>& fillers() {
  static const std::vector<Filler> table = {
      // Openers of 3, 3, 4, 4, 5, 5, 6 and 7 words and marks.
      {"Of course!", true, true},
      {"With pleasure.", true, true},
      {"Happy to help!", true, true},
      {"Thanks for asking.", true, true},
      {"Thank you for asking!", true, true},
      {"I will gladly help.", true, true},
      {"I am happy to help.", true, true},
      {"It is a pleasure to help!", true, true},
      {"I checked.", false, true},
      {"Found it.", false, true},
      {"I checked this.", false, true},
      {"Let me see.", false, true},
      {"As the text says.", false, true},
      {"I read the text.", false, true},
      {"That is in the text.", false, true},
      {"This is what the text says.", false, true},
      // Closers of 3, 5, 5 and 6.
      {"Thank you!", true, false},
      {"Have a nice day!", true, false},
      {"You are very welcome.", true, false},
      {"I hope this helps you.", true, false},
      {"All done.", false, false},
      {"So the text says.", false, false},
      {"That is all here.", false, false},
      {"There is no more here.", false, false},
  };
  return table;
}

int length_in_words(std::string_view text) {
  int length = 0;
  bool in_word = false;
  for (const char c : text) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter ? !in_word : c != ' ') ++length;
    in_word = letter;
  }
  return length;
}

std::string prompt_of(std::string_view human_turn) {
  return "\n\nHuman: " + std::string(human_turn) + "\n\nAssistant:";
}

}  // namespace tercet::demo
