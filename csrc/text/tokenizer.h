// text: from text to token ids and back. The tokenizer is GPT-2's byte-level BPE with OPT's ids; the Unicode classes
// that cut the text are a committed table, so that ids do not depend on any library's version.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace tercet {

// A byte-level BPE tokenizer (Sennrich et al. 2016; Radford et al. 2019). Immutable and cheap to copy; every const
// member may be called from many threads at once.
//
// Merges are applied lowest rank first and, among equal ranks, leftmost first, in O(n log n) for a piece of n bytes.
// Any byte sequence round trips: decode(encode(x), false) == x.
class Tokenizer {
 public:
  static constexpr int32_t pad_id = 1;  // "<pad>": never produced and never needed by the trainer
  static constexpr int32_t end_id = 2;  // "</s>": begins every sequence and ends every answer

  // Reads vocab.json and merges.txt from `folder` or, when there is no vocab.json, tokenizer.json: a BPE model with the
  // ByteLevel pre-tokenizer, add_prefix_space false and no normalizer. Throws Error(Fault::input) that names the file
  // and the part of it that is missing, damaged or of another kind.
  static Tokenizer load(const std::string& folder);

  // From the texts of the two files. `where` (a folder or a model file) begins the messages. Throws Error(Fault::input)
  // when a text is malformed, two entries share an id, a byte has no entry, a merge is not made of entries or appears
  // twice, or "<pad>" and "</s>" are not entries 1 and 2.
  static Tokenizer from_texts(std::string vocab_json, std::string merges_txt, const std::string& where);

  // The texts to store in a model file; from_texts takes them back.
  const std::string& vocab_json() const;
  const std::string& merges_txt() const;

  // The largest id plus one (50265 for OPT, whose embedding has 50272 rows).
  int32_t size() const;

  // The ids of the text, no special tokens among them: "</s>" inside a text is encoded as characters. The text may hold
  // any bytes, NUL among them; bytes that are not UTF-8 are kept as they are.
  std::vector<int32_t> encode(std::string_view text) const;

  // The same, but as Hugging Face's tokenizer does it: the literal strings "</s>" and "<pad>" become ids 2 and 1 and
  // the text between them is encoded piece by piece.
  std::vector<int32_t> encode_with_specials(std::string_view text) const;

  // The bytes that the ids stand for, joined. With skip_special, ids 1 and 2 give nothing (the other special entries
  // are written out, as Hugging Face does). Ids without an entry give nothing. Throws Error(Fault::input) on a negative
  // id.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // decode() with ill-formed UTF-8 replaced by U+FFFD.
  std::string decode_utf8(std::span<const int32_t> ids, bool skip_special = true) const;

  // The bytes of one id, special or not; empty when the id has no entry. Valid as long as a copy of this tokenizer
  // lives.
  std::string_view bytes_of(int32_t id) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  std::shared_ptr<const Data> data_;
};

// Turns ids into text one at a time, holding back bytes that do not yet make a whole code point. The texts of all
// push() calls and of finish(), joined, equal Tokenizer::decode_utf8 of all the ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  // The text that this id completes; may be empty.
  std::string push(int32_t id);

  // What is held back, with U+FFFD for an unfinished code point. The decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace tercet
