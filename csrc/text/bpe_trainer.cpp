#include "text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_level.h"

namespace tercet {

namespace {

constexpr int specials = 4, bytes = 256;

using Pair = std::pair<int32_t, int32_t>;

struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

// The tokens of the vocabulary in the making and, for every pair of neighbours, how often it occurs and in which words.
class Merger {
 public:
  explicit Merger(const std::map<std::string, int64_t>& pre_tokens) {
    for (const char* special : {"<s>", "<pad>", "</s>", "<unk>"}) add_token(special);
    for (int byte = 0; byte < bytes; ++byte) add_token(std::string(1, static_cast<char>(byte)));
    for (const auto& [text, count] : pre_tokens) {
      Word word{{}, count};
      for (const char c : text) word.tokens.push_back(specials + static_cast<uint8_t>(c));
      words_.push_back(std::move(word));
      count_pairs(words_.size() - 1, 1);
    }
  }

  size_t entries() const { return tokens_.size(); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

  // Merges the most frequent pair; false when no pair is left. A merge whose result is an entry already, reached by
  // another way, adds none.
  bool merge_best() {
    const Pair* best = nullptr;
    int64_t best_count = 0;
    for (const auto& [pair, use] : pairs_) {
      if (use.count < best_count || use.count == 0) continue;
      if (use.count == best_count && !before(pair, *best)) continue;
      best = &pair;
      best_count = use.count;
    }
    if (best == nullptr) return false;
    apply(*best);
    return true;
  }

 private:
  struct Use {
    int64_t count = 0;
    std::set<size_t> words;
  };

  bool before(const Pair& a, const Pair& b) const {
    return std::tie(tokens_[a.first], tokens_[a.second]) < std::tie(tokens_[b.first], tokens_[b.second]);
  }

  int32_t add_token(const std::string& token) {
    const auto [entry, is_new] = ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return entry->second;
  }

  void count_pairs(size_t index, int sign) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Use& use = pairs_[{word.tokens[i], word.tokens[i + 1]}];
      use.count += sign * word.count;
      if (sign > 0) use.words.insert(index);
    }
  }

  void apply(Pair pair) {
    merges_.push_back(pair);
    const int32_t merged = add_token(tokens_[pair.first] + tokens_[pair.second]);
    const std::set<size_t> touched = std::move(pairs_[pair].words);
    for (const size_t index : touched) {
      count_pairs(index, -1);
      replace(words_[index].tokens, pair, merged);
      count_pairs(index, 1);
    }
    pairs_.erase(pair);
  }

  static void replace(std::vector<int32_t>& tokens, Pair pair, int32_t merged) {
    size_t out = 0;
    for (size_t i = 0; i < tokens.size(); ++out) {
      const bool match = i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      tokens[out] = match ? merged : tokens[i];
      i += match ? 2 : 1;
    }
    tokens.resize(out);
  }

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::map<Pair, Use> pairs_;
  std::vector<Pair> merges_;
};

}  // namespace

void BpeTrainer::add(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(text, begin);
    ++pre_tokens_[std::string(text.substr(begin, end - begin))];
    begin = end;
  }
}

BpeFiles BpeTrainer::train(int entries) const {
  const std::string where = fmt::format("{} entries", entries);
  if (entries < specials + bytes)
    fail_input("a byte-level vocabulary holds 4 special tokens and 256 bytes", where, "ask for at least 260 entries");
  Merger merger(pre_tokens_);
  while (merger.entries() < static_cast<size_t>(entries))
    if (!merger.merge_best())
      fail_input(fmt::format("the texts give a vocabulary of {} entries only", merger.entries()), where,
                 "train on more text or ask for fewer entries");
  BpeFiles files{"", "#version: 0.2\n"};
  Json::Object vocab;
  for (size_t id = 0; id < merger.entries(); ++id) {
    const std::string& token = merger.tokens()[id];
    vocab.emplace_back(id < specials ? token : to_symbols(token), static_cast<int64_t>(id));
  }
  files.vocab_json = Json(std::move(vocab)).dump() + "\n";
  for (const auto& [left, right] : merger.merges())
    files.merges_txt += to_symbols(merger.tokens()[left]) + " " + to_symbols(merger.tokens()[right]) + "\n";
  return files;
}

}  // namespace tercet
