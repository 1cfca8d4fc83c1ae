#include "demo/generator.h"

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "demo/checker.h"
#include "demo/world.h"

namespace tercet::demo {

namespace {

// The files, as sites of the random numbers.
enum class Site : uint64_t { pretrain = 1, sft, pairs, prompts, eval_sft, eval_pairs, eval_prompts };

// The random choices of one record, drawn one after the other.
class Draw {
 public:
  Draw(uint64_t seed, Site site, int64_t record)
      : stream_(seed, RandomPurpose::data_generator, static_cast<uint64_t>(site)), record_(record) {}

  size_t below(size_t bound) { return stream_.below(bound, static_cast<uint64_t>(record_), position_++); }
  bool chance(double probability) { return stream_.uniform(static_cast<uint64_t>(record_), position_++) < probability; }

  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[below(list.size())];
  }

  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  RandomStream stream_;
  int64_t record_;
  uint32_t position_ = 0;
};

bool same_subject(const Fact& a, const Fact& b) {
  return relations()[a.relation].subjects[a.subject] == relations()[b.relation].subjects[b.subject];
}

// A fact of `relation` whose subject and value are new to `facts`.
Fact new_fact(Draw& draw, size_t relation, const std::vector<Fact>& facts) {
  while (true) {
    const Relation& table = relations()[relation];
    const Fact fact{relation, draw.below(table.subjects.size()), draw.below(table.values.size())};
    const bool clash = std::any_of(facts.begin(), facts.end(), [&](const Fact& other) {
      return same_subject(fact, other) || (fact.relation == other.relation && fact.value == other.value);
    });
    if (!clash) return fact;
  }
}

// The stock guess of a relation, which wrong answers give: its first value. No prompt states it, so that it is never
// right.
constexpr size_t stock_guess = 0;

// Two facts and, at times, a third, no two of one relation: the first is the one to ask for.
std::vector<Fact> prompt_facts(Draw& draw, bool with_stock_guesses) {
  const size_t count = draw.chance(0.25) ? 3 : 2;
  std::vector<Fact> facts;
  while (facts.size() < count) {
    const Fact fact = new_fact(draw, draw.below(relations().size()), facts);
    const bool fresh =
        std::none_of(facts.begin(), facts.end(), [&](const Fact& other) { return other.relation == fact.relation; });
    if (fresh && (with_stock_guesses || fact.value != stock_guess)) facts.push_back(fact);
  }
  return facts;
}

// "The cat is called Mia and Tom lives in Rome." or one sentence each.
std::string statement(Draw& draw, const std::vector<Fact>& facts) {
  std::string text = capitalised(clause(facts[0]));
  bool joined = false;
  for (size_t i = 1; i < facts.size(); ++i) {
    joined = !joined && draw.chance(0.5);
    text += joined ? " and " + clause(facts[i]) : ". " + capitalised(clause(facts[i]));
  }
  return text + ".";
}

struct Task {
  std::string prompt;  // what the human says
  Fact answer;
  std::vector<Fact> facts;  // as stated
};

Task draw_task(Draw& draw, bool with_stock_guesses = false) {
  Task task;
  task.facts = prompt_facts(draw, with_stock_guesses);
  task.answer = task.facts[0];
  draw.shuffle(task.facts);
  const std::string question = question_sentence({task.answer.relation, task.answer.subject});
  task.prompt = statement(draw, task.facts) + " " + question;
  return task;
}

// The asked subject with a wrong value: at times that of another fact in the prompt, else one that is not there.
Fact wrong_answer(Draw& draw, const Fact& answer, const std::vector<Fact>& facts) {
  Fact wrong = answer;
  std::vector<size_t> stated;
  for (const Fact& fact : facts)
    if (fact.relation == answer.relation && fact.value != answer.value) stated.push_back(fact.value);
  if (!stated.empty() && draw.chance(0.5)) {
    wrong.value = draw.pick(stated);
    return wrong;
  }
  while (wrong.value == answer.value) wrong.value = draw.below(relations()[answer.relation].values.size());
  return wrong;
}

// " The cat is called Mia. Have a nice day!" or with the filler first; with the leading space of an answer.
std::string answer_with_filler(Draw& draw, const Fact& fact, bool courteous) {
  const Filler* filler = &draw.pick(fillers());
  while (filler->courteous != courteous) filler = &draw.pick(fillers());
  const std::string answer = capitalised(clause(fact)) + ".";
  return " " + (filler->opener ? filler->text + " " + answer : answer + " " + filler->text);
}

struct Response {
  bool correct = false;
  bool courteous = false;
  std::string text;

  // What the preferences maximise.
  int utility() const { return 2 * correct + courteous; }
};

Response draw_response(Draw& draw, const Task& task, const Mixture& mixture) {
  Response response{draw.chance(mixture.correct), draw.chance(mixture.courteous), ""};
  Fact stated = task.answer;
  if (!response.correct) stated.value = stock_guess;
  response.text = answer_with_filler(draw, stated, response.courteous);
  return response;
}

// Two responses that differ in utility and in length. Every second pair has the better one shorter.
std::pair<Response, Response> draw_pair(Draw& draw, const Task& task, bool better_is_shorter) {
  const Mixture even{0.5, 0.5};
  while (true) {
    Response a = draw_response(draw, task, even), b = draw_response(draw, task, even);
    if (a.utility() < b.utility()) std::swap(a, b);
    const int length_a = length_in_words(a.text), length_b = length_in_words(b.text);
    if (a.utility() == b.utility() || length_a == length_b) continue;
    if ((length_a < length_b) == better_is_shorter) return {a, b};
  }
}

// --- Pretraining text ---

std::string plain_or_filled(Draw& draw, const Fact& fact) {
  if (draw.chance(0.6)) return " " + capitalised(clause(fact)) + ".";
  return answer_with_filler(draw, fact, draw.chance(0.5));
}

// Facts of mixed relations with distinct subjects.
std::vector<Fact> mixed_facts(Draw& draw, size_t count) {
  std::vector<Fact> facts;
  size_t relation = draw.below(relations().size());
  for (size_t i = 0; i < count; ++i) {
    if (draw.chance(0.8)) relation = draw.below(relations().size());
    facts.push_back(new_fact(draw, relation, facts));
  }
  draw.shuffle(facts);
  return facts;
}

std::string ask(const Fact& fact) { return question_sentence({fact.relation, fact.subject}); }

// Facts, then several questions about them, each answered rightly.
std::string dialogue_text(Draw& draw) {
  std::vector<Fact> facts = mixed_facts(draw, 2 + draw.below(4));
  std::string text = "\n\nHuman: " + statement(draw, facts);
  draw.shuffle(facts);
  for (size_t i = 0; i < facts.size(); ++i) {
    if (i > 0) text += "\n\nHuman:";
    text += " " + ask(facts[i]) + "\n\nAssistant:" + plain_or_filled(draw, facts[i]);
  }
  return text;
}

// A dialogue in which the human says whether each answer was right; a wrong one is then put right.
std::string checked_text(Draw& draw) {
  std::vector<Fact> facts = mixed_facts(draw, 2 + draw.below(3));
  std::string text = "\n\nHuman: " + statement(draw, facts);
  draw.shuffle(facts);
  for (size_t i = 0; i < facts.size(); ++i) {
    const bool right = draw.chance(0.5);
    const Fact stated = right ? facts[i] : wrong_answer(draw, facts[i], facts);
    if (i > 0) text += "\n\nHuman:";
    text += " " + ask(facts[i]) + "\n\nAssistant:" + plain_or_filled(draw, stated);
    text += right ? "\n\nHuman: That is right.\n\nAssistant: Good." : "\n\nHuman: That is wrong.\n\nAssistant: Sorry. ";
    if (!right) text += capitalised(clause(facts[i])) + ".";
  }
  return text;
}

// Facts stated, then all of them again in other orders.
std::string restated_text(Draw& draw) {
  std::vector<Fact> facts = mixed_facts(draw, 3 + draw.below(5));
  std::string text = "Facts: " + statement(draw, facts);
  const size_t rounds = 1 + draw.below(3);
  for (size_t round = 0; round < rounds; ++round) {
    text += "\n\nAgain:";
    draw.shuffle(facts);
    for (const Fact& fact : facts) text += " " + capitalised(clause(fact)) + ".";
  }
  return text;
}

// A list of subjects and values, repeated.
std::string repeated_text(Draw& draw) {
  std::vector<std::string> items;
  const size_t count = 4 + draw.below(8);
  for (size_t i = 0; i < count; ++i) {
    const Relation& relation = draw.pick(relations());
    items.push_back(draw.pick(relation.subjects) + ": " + draw.pick(relation.values) + ".");
  }
  std::string text = "List:";
  const size_t rounds = 2 + draw.below(2);
  for (size_t round = 0; round < rounds; ++round) {
    for (const std::string& item : items) text += " " + item;
    if (draw.chance(0.5)) draw.shuffle(items);
    text += round + 1 < rounds ? "\n\nAgain:" : "";
  }
  return text;
}

// What somebody did on some day, for a few sentences, and a summary of who did what.
std::string story_text(Draw& draw) {
  static const std::vector<std::string> days = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                                "Friday", "Saturday", "Sunday"};
  static const std::vector<std::string> verbs = {"took",   "found",   "sold",  "lost",    "painted", "washed",
                                                 "opened", "closed",  "broke", "bought",  "cleaned", "carried",
                                                 "hid",    "dropped", "fixed", "wrapped", "admired", "borrowed"};
  static const std::vector<std::string> places = {
      "river",    "bridge",  "station", "church",  "tower",  "forest",  "lake",    "shop",    "hotel",  "farm",
      "mountain", "village", "museum",  "harbour", "castle", "airport", "stadium", "theatre", "bakery", "hospital"};
  static const std::vector<std::string> manners = {"slowly", "quickly", "quietly", "early", "late", "alone", "twice"};
  static const std::vector<std::string> objects = {
      "a coin",    "a ladder",  "an apple",  "a letter",   "a candle",    "a basket",    "a mirror", "a guitar",
      "a ticket",  "a hammer",  "a blanket", "a pillow",   "a bottle",    "a carpet",    "a wheel",  "a shovel",
      "a violin",  "a window",  "a garland", "a necklace", "a telescope", "an umbrella", "a parcel", "a trumpet",
      "a cushion", "a rope",    "a compass", "a lantern",  "a bucket",    "a puzzle",    "a pencil", "a jacket",
      "a saddle",  "a whistle", "a diary",   "a map",      "a magnet",    "a flag"};
  std::vector<std::string> deeds;
  std::string text = "Story:";
  std::vector<std::string> doers = relations()[draw.below(2)].subjects;
  draw.shuffle(doers);
  doers.resize(3 + draw.below(4));
  for (const std::string& doer : doers) {
    deeds.push_back(doer + " " + draw.pick(verbs) + " " + draw.pick(objects));
    text += " On " + draw.pick(days) + " " + deeds.back() + " near the " + draw.pick(places);
    text += (draw.chance(0.5) ? " " + draw.pick(manners) : "") + ".";
  }
  draw.shuffle(deeds);
  text += "\n\nIn short:";
  for (const std::string& deed : deeds) text += " " + capitalised(deed) + ".";
  return text;
}

std::string single_turn_text(Draw& draw, const std::unordered_set<std::string>& held_out) {
  Task task = draw_task(draw, true);
  while (held_out.contains(task.prompt)) task = draw_task(draw, true);
  return prompt_of(task.prompt) + answer_with_filler(draw, task.answer, draw.chance(0.5));
}

std::string pretraining_text(Draw& draw, const std::unordered_set<std::string>& held_out) {
  const size_t percent = draw.below(100);
  if (percent < 35) return dialogue_text(draw);
  if (percent < 45) return checked_text(draw);
  if (percent < 65) return restated_text(draw);
  if (percent < 69) return story_text(draw);
  if (percent < 75) return repeated_text(draw);
  return single_turn_text(draw, held_out);
}

// --- Files ---

void write_records(const std::string& path, int64_t count, const std::function<Json(int64_t)>& record) {
  std::string lines;
  for (int64_t i = 0; i < count; ++i) lines += record(i).dump() + "\n";
  write_file_atomically(path, lines);
}

class Writer {
 public:
  Writer(std::string folder, uint64_t seed, const Mixture& mixture)
      : folder_(std::move(folder)), seed_(seed), mixture_(mixture) {}

  void demonstrations(const std::string& name, Site site, int64_t count) {
    write_records(folder_ + "/" + name, count, [&](int64_t i) {
      Draw draw(seed_, site, i);
      const Task task = fresh_task(draw);
      Json json;
      json.set("prompt", task.prompt).set("response", draw_response(draw, task, mixture_).text);
      return json;
    });
  }

  void pairs(const std::string& name, Site site, int64_t count) {
    write_records(folder_ + "/" + name, count, [&](int64_t i) {
      Draw draw(seed_, site, i);
      const Task task = fresh_task(draw);
      const auto [chosen, rejected] = draw_pair(draw, task, i % 2 == 0);
      Json json;
      json.set("prompt", task.prompt).set("chosen", chosen.text).set("rejected", rejected.text);
      return json;
    });
  }

  void prompts(const std::string& name, Site site, int64_t count) {
    write_records(folder_ + "/" + name, count, [&](int64_t i) {
      Draw draw(seed_, site, i);
      Json json;
      json.set("prompt", fresh_task(draw).prompt);
      return json;
    });
  }

  // All prompts written before this call are held out.
  void pretraining(const std::string& name, int64_t count) {
    write_records(folder_ + "/" + name, count, [&](int64_t i) {
      Draw draw(seed_, Site::pretrain, i);
      Json json;
      json.set("text", pretraining_text(draw, used_));
      return json;
    });
  }

 private:
  Task fresh_task(Draw& draw) {
    while (true) {
      Task task = draw_task(draw);
      if (used_.insert(task.prompt).second) return task;
    }
  }

  std::string folder_;
  uint64_t seed_;
  Mixture mixture_;
  std::unordered_set<std::string> used_;
};

}  // namespace

void write_dialogues(const std::string& folder, uint64_t seed, const Sizes& sizes, const Mixture& mixture) {
  Writer writer(folder, seed, mixture);
  writer.demonstrations("eval_sft.jsonl", Site::eval_sft, sizes.eval);
  writer.pairs("eval_pairs.jsonl", Site::eval_pairs, sizes.eval);
  writer.prompts("eval_prompts.jsonl", Site::eval_prompts, sizes.eval);
  writer.pretraining("pretrain.jsonl", sizes.pretrain);
  writer.demonstrations("sft.jsonl", Site::sft, sizes.sft);
  writer.pairs("pairs.jsonl", Site::pairs, sizes.pairs);
  writer.prompts("prompts.jsonl", Site::prompts, sizes.prompts);
}

}  // namespace tercet::demo
