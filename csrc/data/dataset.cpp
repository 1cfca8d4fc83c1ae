#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "data/loader.h"
#include "data/records.h"

namespace tercet {
namespace {

using namespace data_detail;

[[noreturn]] void fail_form(const Record& record, const std::string& where, std::string_view wanted) {
  fail_input(fmt::format("a record of {} is of no use here", form_name(record.form)), where,
             fmt::format("give {}", wanted));
}

template <class Item>
int64_t count_tokens(const std::vector<Item>& items) {
  return std::accumulate(items.begin(), items.end(), int64_t{0},
                         [](int64_t sum, const Item& item) { return sum + item.token_count(); });
}

// ---- sequences ----

class SequenceBuilder {
 public:
  SequenceBuilder(const DataOptions& options, const Tokenizer& tokenizer) : options_(options), tokenizer_(tokenizer) {}

  std::vector<int32_t> encode_prompt(std::string_view prompt) const {
    std::vector<int32_t> ids = {Tokenizer::end_id};
    append(ids, prompt);
    return ids;
  }

  bool prompt_too_long(const std::vector<int32_t>& prompt) const {
    return options_.max_prompt_tokens > 0 && std::ssize(prompt) > options_.max_prompt_tokens;
  }

  // id 2, prompt, answer, id 2: whole.
  Sequence complete(const std::vector<int32_t>& prompt, std::string_view answer, uint64_t record, size_t part) const {
    Sequence sequence{prompt, std::ssize(prompt), true, record, part_number(record, part)};
    append(sequence.ids, answer);
    sequence.ids.push_back(Tokenizer::end_id);
    return sequence;
  }

  // Applies max_length; returns the class of the drop, or nothing.
  std::string_view fit(Sequence& sequence, int64_t& truncated) const {
    if (options_.max_length == 0 || sequence.token_count() <= options_.max_length) return {};
    if (!options_.truncate) return drop::too_long;
    if (sequence.prompt_length >= options_.max_length) return drop::prompt_too_long;
    sequence.ids.resize(static_cast<size_t>(options_.max_length));
    sequence.terminated = false;
    ++truncated;
    return {};
  }

 private:
  void append(std::vector<int32_t>& ids, std::string_view text) const {
    const std::vector<int32_t> more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  const DataOptions& options_;
  const Tokenizer& tokenizer_;
};

// Puts an item where it belongs: among the items when no class of drop is named.
template <class Item>
void settle(Outcome<Item>& outcome, std::string_view drop_class, Item item) {
  if (drop_class.empty()) {
    outcome.items.push_back(std::move(item));
  } else {
    outcome.drops.push_back(drop_class);
  }
}

// The class of the drop, or nothing and the sequence.
std::string_view build_sft_answer(const SequenceBuilder& builder, const Completion& completion, const Line& line,
                                  size_t part, int64_t& truncated, Sequence& sequence) {
  if (completion.answer.empty()) return drop::empty_answer;
  const std::vector<int32_t> prompt = builder.encode_prompt(completion.prompt);
  if (builder.prompt_too_long(prompt)) return drop::prompt_too_long;
  sequence = builder.complete(prompt, completion.answer, line.record, part);
  return builder.fit(sequence, truncated);
}

std::string_view build_sft_text(const SequenceBuilder& builder, const Record& record, const Line& line,
                                int64_t& truncated, Sequence& sequence) {
  if (record.text.empty()) return drop::empty_text;
  sequence = builder.complete({Tokenizer::end_id}, record.text, line.record, 0);
  return builder.fit(sequence, truncated);
}

void build_sft(const SequenceBuilder& builder, const Record& record, const Line& line, bool all_turns,
               Outcome<Sequence>& outcome) {
  Sequence sequence;
  if (record.form == Record::Form::text) {
    const std::string_view drop_class = build_sft_text(builder, record, line, outcome.truncated, sequence);
    return settle(outcome, drop_class, std::move(sequence));
  }
  const bool messages = record.form == Record::Form::messages;
  const size_t turns = messages ? record.completions.size() : 1;
  for (size_t turn = all_turns ? 0 : turns - 1; turn < turns; ++turn) {
    const std::string_view drop_class =
        build_sft_answer(builder, record.completions[turn], line, turn, outcome.truncated, sequence);
    settle(outcome, drop_class, std::move(sequence));
  }
}

// The class of the drop, or nothing and the pair.
std::string_view build_pair(const SequenceBuilder& builder, const Record& record, const Line& line, int64_t& truncated,
                            PreferencePair& pair) {
  const Completion& chosen = record.completions[0];
  const Completion& rejected = record.completions[1];
  if (chosen.prompt != rejected.prompt) return drop::prompts_differ;
  if (chosen.answer.empty() || rejected.answer.empty()) return drop::empty_answer;
  const std::vector<int32_t> prompt = builder.encode_prompt(chosen.prompt);
  if (builder.prompt_too_long(prompt)) return drop::prompt_too_long;
  pair = {builder.complete(prompt, chosen.answer, line.record, 0),
          builder.complete(prompt, rejected.answer, line.record, 1), line.record};
  int64_t cut = 0;
  for (Sequence* sequence : {&pair.chosen, &pair.rejected})
    if (const std::string_view drop_class = builder.fit(*sequence, cut); !drop_class.empty()) return drop_class;
  if (pair.chosen.ids == pair.rejected.ids) return drop::identical_pair;
  truncated += cut;
  return {};
}

// ---- prompts ----

const std::string& prompt_of(const Record& record) {
  if (record.open_prompt) return *record.open_prompt;
  return record.form == Record::Form::messages ? record.completions.back().prompt : record.completions.front().prompt;
}

std::string answer_of(const Record& record) {
  if (record.open_prompt || record.completions.empty()) return "";
  return record.form == Record::Form::messages ? record.completions.back().answer : record.completions.front().answer;
}

// ---- text blocks ----

// Cuts [2, text, 2] into blocks of at most `length` ids that overlap by one.
std::vector<Sequence> cut_blocks(const Sequence& whole, int64_t length) {
  std::vector<Sequence> blocks;
  const int64_t count = whole.token_count();
  for (int64_t begin = 0; begin + 1 < count; begin += length - 1) {
    const int64_t end = std::min(begin + length, count);
    blocks.push_back({{whole.ids.begin() + begin, whole.ids.begin() + end},
                      1,
                      end == count,
                      whole.record,
                      part_number(whole.record, blocks.size())});
  }
  return blocks;
}

// ---- scoring ----

ScoreItem build_score_item(const SequenceBuilder& builder, const Record& record, const Line& line) {
  const auto completion_sequence = [&](const Completion& completion, size_t part) {
    return builder.complete(builder.encode_prompt(completion.prompt), completion.answer, line.record, part);
  };
  ScoreItem item;
  item.where = line.where;
  item.record = line.record;
  if (record.form == Record::Form::ids) {
    item.sequence = {record.ids, 1, record.ids.back() == Tokenizer::end_id, line.record, line.record};
  } else if (record.form == Record::Form::text) {
    item.sequence = {builder.encode_prompt(record.text), 1, false, line.record, line.record};
  } else if (record.form == Record::Form::pair) {
    item.sequence = completion_sequence(record.completions[0], 0);
    item.rejected = completion_sequence(record.completions[1], 1);
  } else {
    item.sequence = completion_sequence(record.completions.back(), 0);
  }
  return item;
}

void check_score_length(const ScoreItem& item, int64_t max_length) {
  if (max_length == 0) return;
  const int64_t longest =
      std::max(item.sequence.token_count(), item.rejected ? item.rejected->token_count() : int64_t{0});
  if (longest > max_length)
    fail_input(fmt::format("the sequence has {} ids, more than {}", longest, max_length), item.where,
               "shorten the record or raise --max-length");
}

}  // namespace

SftData load_sft(const DataOptions& options, const Tokenizer& tokenizer) {
  const Plan plan = make_plan(options, false);
  const SequenceBuilder builder(options, tokenizer);
  const auto check = [](const Record& record, const std::string& where) {
    if (record.form == Record::Form::prompt || (record.form == Record::Form::messages && record.completions.empty()))
      fail_form(record, where, "records with an answer");
  };
  const auto build = [&](const Record& record, const Line& line, Outcome<Sequence>& outcome) {
    build_sft(builder, record, line, plan.all_turns, outcome);
  };
  Loaded<Sequence> loaded = Loader<Sequence>(options, plan).load(check, build);
  SftData data{std::move(loaded.items), std::move(loaded.drops), 0, 0};
  data.tokens = count_tokens(data.sequences);
  for (const Sequence& sequence : data.sequences) data.answer_tokens += sequence.answer_length();
  return data;
}

PairData load_pairs(const DataOptions& options, const Tokenizer& tokenizer) {
  const Plan plan = make_plan(options, false);
  const SequenceBuilder builder(options, tokenizer);
  const auto check = [](const Record& record, const std::string& where) {
    if (record.form != Record::Form::pair) fail_form(record, where, "records with chosen and rejected");
  };
  const auto build = [&](const Record& record, const Line& line, Outcome<PreferencePair>& outcome) {
    PreferencePair pair;
    const std::string_view drop_class = build_pair(builder, record, line, outcome.truncated, pair);
    settle(outcome, drop_class, std::move(pair));
  };
  Loaded<PreferencePair> loaded = Loader<PreferencePair>(options, plan).load(check, build);
  const int64_t tokens = count_tokens(loaded.items);
  return {std::move(loaded.items), std::move(loaded.drops), tokens};
}

PromptData load_prompts(const DataOptions& options, const Tokenizer& tokenizer, const AnswerCheck& drop_class) {
  const Plan plan = make_plan(options, false);
  const SequenceBuilder builder(options, tokenizer);
  const auto check = [](const Record& record, const std::string& where) {
    if (record.form == Record::Form::text) fail_form(record, where, "records with a prompt");
  };
  const auto build = [&](const Record& record, const Line& line, Outcome<Prompt>& outcome) {
    const std::string& text = prompt_of(record);
    std::vector<int32_t> ids = builder.encode_prompt(text);
    std::string answer = answer_of(record);
    std::string_view dropped = builder.prompt_too_long(ids) ? drop::prompt_too_long : std::string_view{};
    if (dropped.empty() && drop_class) dropped = drop_class(answer);
    settle(outcome, dropped, Prompt{std::move(ids), text, line.record, part_number(line.record, 0), std::move(answer)});
  };
  std::unordered_set<std::string> seen;
  const auto accept = [&](const Prompt& prompt) {
    return seen.insert(prompt.text).second ? std::string_view{} : drop::duplicate_prompt;
  };
  Loaded<Prompt> loaded = Loader<Prompt>(options, plan).load(check, build, accept);
  const int64_t tokens = count_tokens(loaded.items);
  return {std::move(loaded.items), std::move(loaded.drops), tokens};
}

TextBlocks load_text_blocks(const DataOptions& options, const Tokenizer& tokenizer) {
  const Plan plan = make_plan(options, false);
  if (options.max_length < 1)
    fail_input("text is cut into blocks of --max-length ids, which is not set", "--max-length");
  const SequenceBuilder builder(options, tokenizer);
  const auto check = [](const Record& record, const std::string& where) {
    if (record.form != Record::Form::text) fail_form(record, where, "records with text");
  };
  const auto build = [&](const Record& record, const Line& line, Outcome<Sequence>& outcome) {
    if (record.text.empty()) {
      outcome.drops.push_back(drop::empty_text);
    } else {
      outcome.items =
          cut_blocks(builder.complete({Tokenizer::end_id}, record.text, line.record, 0), options.max_length);
    }
  };
  Loaded<Sequence> loaded = Loader<Sequence>(options, plan).load(check, build);
  const int64_t tokens = count_tokens(loaded.items);
  return {std::move(loaded.items), std::move(loaded.drops), tokens};
}

ScoreData load_score(const DataOptions& options, const Tokenizer& tokenizer) {
  const Plan plan = make_plan(options, true);
  for (const DataPath& file : plan.files)
    if (file.weight != 1)
      fail_input("records are scored once each", fmt::format("--data {}", file.path), "leave out the weight");
  const SequenceBuilder builder(options, tokenizer);
  const auto check = [](const Record& record, const std::string& where) {
    if (record.form == Record::Form::prompt || (record.form == Record::Form::messages && record.completions.empty()))
      fail_form(record, where, "records with an answer, text or ids");
  };
  const auto build = [&](const Record& record, const Line& line, Outcome<ScoreItem>& outcome) {
    outcome.items.push_back(build_score_item(builder, record, line));
  };
  const auto accept = [&](const ScoreItem& item) {
    check_score_length(item, options.max_length);
    return std::string_view{};
  };
  Loaded<ScoreItem> loaded = Loader<ScoreItem>(options, plan).load(check, build, accept);
  ScoreData data{std::move(loaded.items), std::move(loaded.drops), 0};
  for (const ScoreItem& item : data.items)
    data.tokens += item.sequence.token_count() + (item.rejected ? item.rejected->token_count() : 0);
  return data;
}

}  // namespace tercet
