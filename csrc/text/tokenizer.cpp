#include "text/tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/byte_level.h"
#include "text/merge_table.h"

namespace tercet {
namespace {

constexpr int32_t largest_id = (1 << 24) - 1;
constexpr std::string_view pad_text = "<pad>";
constexpr std::string_view end_text = "</s>";
constexpr std::string_view merges_header = "#version";

using Vocabulary = std::unordered_map<std::string_view, int32_t>;

struct NamedMerge {
  std::string_view left;
  std::string_view right;
  int64_t line;
};

// The next line of `text` without its line feed and a carriage return before it.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::vector<NamedMerge> parse_merges(std::string_view text, const std::string& where) {
  std::vector<NamedMerge> merges;
  for (int64_t line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = take_line(text);
    if (line_number == 1 && line.starts_with(merges_header)) continue;
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos)
      fail_input(fmt::format("line {} is \"{}\", not two symbols with one space between them", line_number, line),
                 where, "give the merges.txt that belongs to the vocabulary");
    merges.push_back({line.substr(0, space), line.substr(space + 1), line_number});
  }
  return merges;
}

// Views into `json`, which must outlive the result.
Vocabulary parse_vocabulary(const Json& json, const std::string& where) {
  if (!json.is_object())
    fail_input(fmt::format("expected an object of token: id but found {}", json.type_name()), where);
  Vocabulary vocabulary;
  vocabulary.reserve(json.as_object().size());
  for (const auto& [symbols, id] : json.as_object()) {
    if (!id.is_integer())
      fail_input(fmt::format("the id of \"{}\" is {}, not an integer", symbols, id.type_name()), where);
    if (id.as_double() < 0 || id.as_double() > largest_id)
      fail_input(fmt::format("the id of \"{}\" is {}; ids go from 0 to {}", symbols, id.dump(), largest_id), where);
    vocabulary.emplace(symbols, static_cast<int32_t>(id.as_int()));
  }
  return vocabulary;
}

void require_special(const Vocabulary& vocabulary, std::string_view text, int32_t id, const std::string& where) {
  const auto entry = vocabulary.find(text);
  if (entry != vocabulary.end() && entry->second == id) return;
  const std::string present = entry == vocabulary.end() ? "no entry" : fmt::format("the id {}", entry->second);
  fail_input(fmt::format("\"{}\" has {} but must have the id {}", text, present, id), where,
             "give the tokenizer of an OPT model (GPT-2's own vocab.json numbers the same tokens differently)");
}

// What a vocabulary's entry stands for: bytes, or, for an entry with other characters (special tokens), its own text.
std::string entry_bytes(std::string_view symbols) {
  std::optional<std::string> bytes = from_symbols(symbols);
  return bytes ? std::move(*bytes) : std::string(symbols);
}

std::vector<std::string> bytes_by_id(const Vocabulary& vocabulary, const std::string& where) {
  int32_t last = -1;
  for (const auto& [symbols, id] : vocabulary) last = std::max(last, id);
  std::vector<std::string_view> owner(static_cast<size_t>(last) + 1);
  std::vector<std::string> bytes(owner.size());
  for (const auto& [symbols, id] : vocabulary) {
    std::string_view& present = owner[static_cast<size_t>(id)];
    if (present.data() != nullptr)
      fail_input(
          fmt::format("\"{}\" and \"{}\" share the id {}", std::min(present, symbols), std::max(present, symbols), id),
          where);
    present = symbols;
    bytes[static_cast<size_t>(id)] = entry_bytes(symbols);
  }
  return bytes;
}

std::array<int32_t, 256> ids_of_bytes(const Vocabulary& vocabulary, const std::string& where) {
  std::array<int32_t, 256> ids{};
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto entry = vocabulary.find(byte_symbol(static_cast<uint8_t>(byte)));
    if (entry == vocabulary.end())
      fail_input(fmt::format("the byte {:#04x} has no entry (\"{}\")", byte, byte_symbol(static_cast<uint8_t>(byte))),
                 where, "a byte-level vocabulary has one for each of the 256 bytes");
    ids[byte] = entry->second;
  }
  return ids;
}

MergeTable make_merge_table(const std::vector<NamedMerge>& merges, const Vocabulary& vocabulary,
                            const std::string& where) {
  MergeTable table(merges.size());
  const auto id_of = [&](std::string_view symbols, const NamedMerge& merge) {
    const auto entry = vocabulary.find(symbols);
    if (entry == vocabulary.end())
      fail_input(fmt::format("line {} (\"{} {}\"): \"{}\" is not in the vocabulary", merge.line, merge.left,
                             merge.right, symbols),
                 where, "give the merges.txt that belongs to the vocabulary");
    return entry->second;
  };
  int32_t rank = 0;
  for (const NamedMerge& merge : merges) {
    const int32_t left = id_of(merge.left, merge);
    const int32_t right = id_of(merge.right, merge);
    const int32_t merged = id_of(std::string(merge.left).append(merge.right), merge);
    if (merged == Tokenizer::pad_id || merged == Tokenizer::end_id)
      fail_input(
          fmt::format("line {} (\"{} {}\") makes a special token out of text", merge.line, merge.left, merge.right),
          where);
    if (!table.insert(left, right, {rank++, merged}))
      fail_input(fmt::format("line {} (\"{} {}\") appears twice", merge.line, merge.left, merge.right), where);
  }
  return table;
}

}  // namespace

struct Tokenizer::Data {
  std::string vocab_json;
  std::string merges_txt;
  std::vector<std::string> bytes;  // by id
  std::array<int32_t, 256> id_of_byte{};
  MergeTable merges;

  void encode_into(std::vector<int32_t>& ids, std::string_view text) const {
    Merger merger(merges);
    std::vector<int32_t> piece;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = piece_end(text, begin);
      piece.clear();
      for (const char byte : text.substr(begin, end - begin)) piece.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
      merger.apply(piece);
      ids.insert(ids.end(), piece.begin(), piece.end());
      begin = end;
    }
  }
};

namespace {

// ---- tokenizer.json ----

struct TokenizerTexts {
  std::string vocab_json;
  std::string merges_txt;
};

// Refuses a member that is present with a value that is neither null nor `accepted`.
void require_absent_or(const Json& object, const char* key, const Json& accepted, const std::string& where) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null() || *value == accepted) return;
  fail_input(fmt::format("\"{}\" is {}; only {} is supported", key, value->dump(), accepted.dump()), where,
             "give a byte-level BPE tokenizer");
}

const Json& require_member(const Json& object, const char* key, const std::string& where) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) fail_input(fmt::format("\"{}\" is missing", key), where);
  return *value;
}

void require_type(const Json& object, const char* expected, const std::string& what, const std::string& where) {
  const Json& type = require_member(object, "type", where + ": " + what);
  if (type != Json(expected))
    fail_input(fmt::format("the {} is of type {}; only {} is supported", what, type.dump(), expected), where,
               "give a byte-level BPE tokenizer");
}

void check_tokenizer_json(const Json& json, const std::string& where) {
  require_absent_or(json, "normalizer", Json(), where);
  const Json& model = require_member(json, "model", where);
  require_type(model, "BPE", "model", where);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) require_absent_or(model, key, "", where);
  for (const char* key : {"byte_fallback", "ignore_merges"}) require_absent_or(model, key, false, where);
  require_absent_or(model, "dropout", 0.0, where);
  const Json& pre_tokenizer = require_member(json, "pre_tokenizer", where);
  require_type(pre_tokenizer, "ByteLevel", "pre_tokenizer", where);
  if (require_member(pre_tokenizer, "add_prefix_space", where + ": pre_tokenizer") != Json(false))
    fail_input("the pre_tokenizer has add_prefix_space true; only false is supported", where);
  require_absent_or(pre_tokenizer, "use_regex", true, where);
}

std::string merges_text(const Json& merges, const std::string& where) {
  if (!merges.is_array()) fail_input(fmt::format("\"merges\" is {}, not an array", merges.type_name()), where);
  std::string text = "#version: 0.2\n";
  for (const Json& merge : merges.as_array()) {
    if (merge.is_string()) {
      text += merge.as_string();
    } else if (merge.is_array() && merge.as_array().size() == 2 && merge.as_array()[0].is_string() &&
               merge.as_array()[1].is_string()) {
      text += merge.as_array()[0].as_string() + ' ' + merge.as_array()[1].as_string();
    } else {
      fail_input(fmt::format("the merge {} is neither \"left right\" nor [\"left\", \"right\"]", merge.dump()), where);
    }
    text += '\n';
  }
  return text;
}

// The vocabulary and those added tokens that it lacks.
Json full_vocabulary(const Json& json, const std::string& where) {
  Json vocabulary = require_member(json.at("model"), "vocab", where);
  if (!vocabulary.is_object()) fail_input(fmt::format("\"vocab\" is {}, not an object", vocabulary.type_name()), where);
  const Json* added = json.find("added_tokens");
  if (added == nullptr || added->is_null()) return vocabulary;
  if (!added->is_array()) fail_input(fmt::format("\"added_tokens\" is {}, not an array", added->type_name()), where);
  std::unordered_map<std::string, Json> known(vocabulary.as_object().begin(), vocabulary.as_object().end());
  for (const Json& token : added->as_array()) {
    const Json& content = require_member(token, "content", where + ": added_tokens");
    const Json& id = require_member(token, "id", where + ": added_tokens");
    if (!content.is_string()) fail_input(fmt::format("an added token's \"content\" is {}", content.dump()), where);
    const auto [present, is_new] = known.emplace(content.as_string(), id);
    if (present->second != id)
      fail_input(fmt::format("the added token \"{}\" has the id {} but the vocabulary gives {}", content.as_string(),
                             id.dump(), present->second.dump()),
                 where);
    if (is_new) vocabulary.as_object().emplace_back(content.as_string(), id);
  }
  return vocabulary;
}

TokenizerTexts read_tokenizer_json(const std::string& path) {
  const MappedFile file(path);
  const Json json = parse_json(file.text(), path);
  check_tokenizer_json(json, path);
  return {full_vocabulary(json, path).dump(), merges_text(require_member(json.at("model"), "merges", path), path)};
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& folder) {
  const std::filesystem::path base(folder);
  const auto path_of = [&](const char* name) { return (base / name).string(); };
  if (!std::filesystem::is_directory(base))
    fail_input("not a folder", folder, "give the folder that holds the tokenizer's files");
  if (std::filesystem::exists(base / "vocab.json"))
    return from_texts(read_file(path_of("vocab.json")), read_file(path_of("merges.txt")), folder);
  if (!std::filesystem::exists(base / "tokenizer.json"))
    fail_input("there is no tokenizer here", folder,
               "the folder must hold vocab.json and merges.txt, or tokenizer.json");
  TokenizerTexts texts = read_tokenizer_json(path_of("tokenizer.json"));
  return from_texts(std::move(texts.vocab_json), std::move(texts.merges_txt), path_of("tokenizer.json"));
}

Tokenizer Tokenizer::from_texts(std::string vocab_json, std::string merges_txt, const std::string& where) {
  const std::string vocabulary_where = where + ": vocab.json";
  const std::string merges_where = where + ": merges.txt";
  const Json json = parse_json(vocab_json, vocabulary_where);
  const Vocabulary vocabulary = parse_vocabulary(json, vocabulary_where);
  require_special(vocabulary, pad_text, pad_id, vocabulary_where);
  require_special(vocabulary, end_text, end_id, vocabulary_where);
  std::vector<std::string> bytes = bytes_by_id(vocabulary, vocabulary_where);
  const std::array<int32_t, 256> id_of_byte = ids_of_bytes(vocabulary, vocabulary_where);
  MergeTable merges = make_merge_table(parse_merges(merges_txt, merges_where), vocabulary, merges_where);
  return Tokenizer(std::make_shared<const Data>(
      Data{std::move(vocab_json), std::move(merges_txt), std::move(bytes), id_of_byte, std::move(merges)}));
}

const std::string& Tokenizer::vocab_json() const { return data_->vocab_json; }

const std::string& Tokenizer::merges_txt() const { return data_->merges_txt; }

int32_t Tokenizer::size() const { return static_cast<int32_t>(data_->bytes.size()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  data_->encode_into(ids, text);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text) const {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const size_t pad = text.find(pad_text);
    const size_t end = text.find(end_text);
    const size_t special = std::min(pad, end);
    data_->encode_into(ids, text.substr(0, special));
    if (special == std::string_view::npos) break;
    ids.push_back(pad < end ? pad_id : end_id);
    text.remove_prefix(special + (pad < end ? pad_text.size() : end_text.size()));
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && (id == pad_id || id == end_id)) continue;
    bytes += bytes_of(id);
  }
  return bytes;
}

std::string Tokenizer::decode_utf8(std::span<const int32_t> ids, bool skip_special) const {
  return replace_ill_formed_utf8(decode(ids, skip_special)).text;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (id < 0) fail_input(fmt::format("{} is not a token id", id), "", "ids are not negative");
  if (id >= size()) return {};
  return data_->bytes[static_cast<size_t>(id)];
}

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_.decode(std::span<const int32_t>(&id, 1), skip_special_);
  size_t whole = 0;
  while (whole < pending_.size()) {
    const Utf8Step step = decode_utf8_step(pending_, whole);
    if (step.status == Utf8Step::Status::truncated) break;
    whole += step.bytes;
  }
  std::string text = replace_ill_formed_utf8(std::string_view(pending_).substr(0, whole)).text;
  pending_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() { return replace_ill_formed_utf8(std::exchange(pending_, {})).text; }

}  // namespace tercet
