// data: from files of records to sequences of token ids, and from those to ragged batches.
//
// A sequence is id 2, the prompt, the answer, id 2. Prompt and answer are encoded separately. Nothing is cut or left
// out without being counted: a record that cannot be used is dropped under the name of its class.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace tercet {

// One sequence of token ids.
struct Sequence {
  std::vector<int32_t> ids;
  // ids[0, prompt_length) are id 2 and the prompt; the rest is the answer and, when `terminated`, its final id 2. 1 for
  // {"text"}, all of whose tokens are learned.
  int64_t prompt_length = 0;
  bool terminated = false;  // whether the final id 2 is there
  // The number of the record, counting every record of every file in the order given, used or not, from 0.
  uint64_t record = 0;
  // The number of this sequence in random draws (RandomStream's `sample`), below 2^63: the record in bits 0-35; in bits
  // 36-53, modulo 2^18, which sequence of the record it is (0 for chosen and 1 for rejected; the assistant turn; the
  // text block); above, which copy of the record under a weight.
  uint64_t sample = 0;

  int64_t token_count() const { return static_cast<int64_t>(ids.size()); }
  int64_t answer_length() const { return token_count() - prompt_length; }
};

// Two answers to one prompt, chosen preferred. Both sequences start with the same prompt_length ids.
struct PreferencePair {
  Sequence chosen;
  Sequence rejected;
  uint64_t record = 0;

  int64_t token_count() const { return chosen.token_count() + rejected.token_count(); }
};

// A prompt to answer: id 2 and the ids of `text`.
struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
  uint64_t record = 0;
  uint64_t sample = 0;  // as Sequence::sample
  std::string answer;   // the record's own, the chosen one of a pair; empty when it has none

  int64_t token_count() const { return static_cast<int64_t>(ids.size()); }
};

// A record to score, which keeps its place: nothing is dropped.
struct ScoreItem {
  Sequence sequence;                 // the only one, or the chosen one of a pair
  std::optional<Sequence> rejected;  // of a pair
  std::string where;                 // "file:line"
  uint64_t record = 0;
};

// Classes of DropCounts. A class counts sequences for --turns all, records otherwise.
namespace drop {
constexpr std::string_view bad_record = "bad record";             // tolerated by --max-bad-records
constexpr std::string_view empty_answer = "empty answer";         // nothing but spaces
constexpr std::string_view empty_text = "empty text";             // {"text": ""}
constexpr std::string_view prompts_differ = "prompts differ";     // whole dialogues of a pair
constexpr std::string_view identical_pair = "identical answers";  // of a pair, after truncation
constexpr std::string_view prompt_too_long = "prompt too long";  // beyond --max-prompt-tokens, or no room for an answer
constexpr std::string_view too_long = "too long";                // beyond --max-length, without --truncate
constexpr std::string_view duplicate_prompt = "duplicate prompt";  // load_prompts only
constexpr std::string_view no_number = "no number after ####";     // load_prompts for the rule gsm8k
}  // namespace drop

// What became of the records that were read.
struct DropCounts {
  int64_t records = 0;       // read, bad ones included
  int64_t other_shares = 0;  // left to other steps by `split`
  int64_t truncated = 0;     // sequences cut to max_length under `truncate`, which were kept
  std::map<std::string, int64_t> by_class;
  std::map<std::string, std::string> first_of_class;  // "file:line" of the first one

  void add(std::string_view drop_class, const std::string& where);
  int64_t count(std::string_view drop_class) const;  // 0 when none
  int64_t total() const;                             // over classes

  // "2312 records read; dropped 9: 4 empty answer (first at F:12), 5 prompts differ (first at F:7)". One line.
  std::string text() const;
  // {"records","other_shares","truncated","dropped":{class: count...}}.
  Json json() const;
};

struct DataOptions {
  // PATH or PATH=WEIGHT. The weight is how often a record of the file appears in an epoch: 2.5 gives each usable record
  // twice and a random half of them, the same in each epoch, a third time. The text after the last '=' is a weight when
  // it is a number; a file whose name contains one needs "=1" at the end.
  std::vector<std::string> paths;
  std::string fields;                    // "prompt=question,response=answer"; empty: names as documented
  std::string prompt_template = "none";  // or "human-assistant"
  std::string turns = "last";            // or "all": a sequence per assistant turn of {"messages"} (load_sft)
  int64_t max_length = 0;                // ids of a sequence, both ids 2 included; 0: no limit
  int64_t max_prompt_tokens = 0;         // ids of a prompt, its id 2 included; 0: no limit
  bool truncate = false;
  int64_t max_bad_records = 0;  // over all files
  // Shares of the steps, such as {2, 4, 4}, and which one is wanted (from 0). A record's share is a hash of its first
  // human turn and of nothing else. Empty: all records.
  std::vector<double> split;
  int split_share = 0;
  uint64_t seed = 0;  // chooses the records of a fractional weight
};

// Parses "2,4,4". Throws Error(Fault::input) that names --split unless all are finite, none is negative and one is
// positive.
std::vector<double> parse_split(std::string_view text);

// Splits "PATH=WEIGHT" (see DataOptions::paths). Throws Error(Fault::input) on a weight that is not finite and
// positive.
struct DataPath {
  std::string path;
  double weight = 1;
};
DataPath parse_data_path(const std::string& text);

// The step whose share holds a first human turn: s with cumulated(s) <= u * total < cumulated(s + 1), u = XXH3(key) /
// 2^64.
int split_share_of(std::string_view split_key, const std::vector<double>& split);

struct SftData {
  std::vector<Sequence> sequences;
  DropCounts drops;
  int64_t tokens = 0;         // ids of all sequences
  int64_t answer_tokens = 0;  // ids that carry a loss under --loss-on response
};

struct PairData {
  std::vector<PreferencePair> pairs;
  DropCounts drops;
  int64_t tokens = 0;
};

struct PromptData {
  std::vector<Prompt> prompts;
  DropCounts drops;
  int64_t tokens = 0;
};

struct TextBlocks {
  std::vector<Sequence> blocks;
  DropCounts drops;
  int64_t tokens = 0;
};

struct ScoreData {
  std::vector<ScoreItem> items;
  DropCounts drops;  // bad records at most
  int64_t tokens = 0;
};

// All loaders read the files in the order given, apply `split`, then the rules of the form, then weights. Items are in
// the order of files, then copies, then records. They throw Error(Fault::input) on options that make no sense, on a
// file that cannot be read, on the first bad record beyond `max_bad_records` (file and line), on a record of a form
// that the loader cannot use, and when nothing usable is left.

// Step 1: {"prompt","response"}, {"messages"}, the chosen answer of a pair, {"text"}. A sequence beyond max_length is
// dropped or, with `truncate`, cut at its end, so that it has no final id 2; one whose prompt leaves no room is
// dropped.
SftData load_sft(const DataOptions& options, const Tokenizer& tokenizer);

// Step 2: pairs. Both answers are cut by themselves under `truncate`.
PairData load_pairs(const DataOptions& options, const Tokenizer& tokenizer);

// Step 3 and `generate`: the prompt of every form but {"text"}, each distinct one once (before weights); of messages,
// what precedes the last assistant turn, or all of them when the last turn is a user's. `drop_class`, when given, names
// the class under which a record with this answer is dropped, or nothing.
using AnswerCheck = std::function<std::string_view(std::string_view answer)>;
PromptData load_prompts(const DataOptions& options, const Tokenizer& tokenizer, const AnswerCheck& drop_class = {});

// The pre-training mix of step 3: {"text"} only. Each text, with id 2 at both ends, is cut into blocks of at most
// max_length ids; a block starts with the last id of the one before, so that each id but the first is learned once.
TextBlocks load_text_blocks(const DataOptions& options, const Tokenizer& tokenizer);

// `score`: every form but {"prompt"}, in the order of the files. {"text"} gets the leading id 2 only; {"ids"} are taken
// as they are, with prompt_length 1. Messages end with their last assistant turn. An empty answer is a sequence too. A
// sequence beyond max_length is an error that names file and line. Weights other than 1 are refused. The caller checks
// ids against the model's vocabulary.
ScoreData load_score(const DataOptions& options, const Tokenizer& tokenizer);

}  // namespace tercet
