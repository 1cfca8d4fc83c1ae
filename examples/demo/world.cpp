#include "demo/world.h"

#include <algorithm>
#include <cctype>

namespace tercet::demo {

namespace {

const std::vector<std::string> people = {
    "Tom", "Ana", "Ben", "Eva", "Max", "Lea",  "Sam",  "Ida",  "Leo",  "Amy",  "Jon",  "Kim",  "Dan",  "Sue",  "Pat",
    "Liz", "Ned", "Joy", "Ray", "Fay", "Karl", "Nina", "Omar", "Rosa", "Paul", "Vera", "Hans", "Ines", "Jack", "Olga"};
const std::vector<std::string> things = {"the box",   "the cup",  "the lamp", "the hat",   "the ball", "the bag",
                                         "the pen",   "the key",  "the coat", "the ring",  "the book", "the boat",
                                         "the chair", "the drum", "the kite", "the clock", "the vase", "the shoe"};
const std::vector<std::string> animals = {"the cat",  "the dog", "the bird",   "the fish",  "the frog",
                                          "the goat", "the hen", "the pig",    "the duck",  "the fox",
                                          "the bear", "the cow", "the rabbit", "the horse", "the mouse"};

std::string lower_first(std::string_view text) {
  std::string result(text);
  if (!result.empty()) result[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(result[0])));
  return result;
}

// The index of the list's entry that `text` begins with, followed by `next`; the length taken goes to `taken`.
std::optional<size_t> match_prefix(const std::vector<std::string>& list, std::string_view text, std::string_view next,
                                   size_t* taken) {
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string& entry = list[i];
    if (text.starts_with(entry) && text.substr(entry.size()).starts_with(next)) {
      *taken = entry.size() + next.size();
      return i;
    }
  }
  return std::nullopt;
}

std::optional<size_t> index_of(const std::vector<std::string>& list, std::string_view text) {
  const auto found = std::find(list.begin(), list.end(), text);
  if (found == list.end()) return std::nullopt;
  return static_cast<size_t>(found - list.begin());
}

std::optional<Fact> parse_exact_clause(std::string_view text) {
  for (size_t r = 0; r < relations().size(); ++r) {
    const Relation& relation = relations()[r];
    size_t taken = 0;
    const auto subject = match_prefix(relation.subjects, text, relation.middle, &taken);
    if (!subject) continue;
    const auto value = index_of(relation.values, text.substr(taken));
    if (value) return Fact{r, *subject, *value};
  }
  return std::nullopt;
}

}  // namespace

const std::vector<Relation>& relations() {
  static const std::vector<Relation> table = {
      {animals,
       {"Mia",  "Rex",  "Lulu", "Otto", "Coco", "Bobo",  "Zara",  "Finn",  "Nala",  "Hugo",
        "Kiki", "Toby", "Ruby", "Gus",  "Pip",  "Bella", "Daisy", "Felix", "Misty", "Rocky"},
       " is called ",
       "What is ",
       " called?"},
      {people,
       {"Rome", "Paris", "Oslo", "Bern", "Cairo", "Lima", "Delhi", "Kyoto", "Boston", "Madrid", "Turin", "Perth",
        "Quito", "Seoul", "Dublin", "Lagos", "Vienna", "Milan"},
       " lives in ",
       "Where does ",
       " live?"},
      {people,
       {"soup", "rice", "cake", "tea", "milk", "corn", "bread", "fruit", "jam", "pie", "nuts", "eggs", "beans", "plums",
        "cheese", "honey", "pasta", "salad"},
       " likes ",
       "What does ",
       " like?"},
      {people,
       {"baker", "farmer", "nurse", "pilot", "singer", "tailor", "doctor", "painter", "miner", "judge", "driver",
        "cook", "clerk", "guard", "teacher", "sailor"},
       " works as a ",
       "What does ",
       " work as?"},
      {things,
       {"red", "blue", "green", "white", "black", "pink", "grey", "brown", "gold", "yellow", "purple", "orange"},
       " is ",
       "What colour is ",
       "?"},
      {things,
       {"kitchen", "garden", "hall", "attic", "cellar", "barn", "shed", "car", "office", "school", "library", "market"},
       " is in the ",
       "Where is ",
       "?"},
  };
  return table;
}

std::string clause(const Fact& fact) {
  const Relation& relation = relations()[fact.relation];
  return relation.subjects[fact.subject] + relation.middle + relation.values[fact.value];
}

std::string question_sentence(const Question& question) {
  const Relation& relation = relations()[question.relation];
  return relation.question_before + relation.subjects[question.subject] + relation.question_after;
}

std::string capitalised(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::optional<Fact> parse_clause(std::string_view text) {
  if (const auto fact = parse_exact_clause(text)) return fact;
  return parse_exact_clause(lower_first(text));
}

std::optional<Question> parse_question(std::string_view text) {
  const std::string sentence = capitalised(std::string(text));
  for (size_t r = 0; r < relations().size(); ++r) {
    const Relation& relation = relations()[r];
    for (size_t s = 0; s < relation.subjects.size(); ++s)
      if (sentence == question_sentence({r, s})) return Question{r, s};
  }
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
