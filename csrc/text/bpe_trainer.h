// Trains a byte-level BPE vocabulary (GPT-2 pre-tokenization) on text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tercet {

// The two files of a tokenizer, as text: vocab.json ({token: id}) and merges.txt ("#version: 0.2", then a merge a
// line).
struct BpeFiles {
  std::string vocab_json;
  std::string merges_txt;
};

// Byte-pair encoding after P. Gage (1994) and R. Sennrich et al., "Neural machine translation of rare words with
// subword units" (2016), on the bytes of GPT-2's pre-tokens: the most frequent pair of neighbours is merged again and
// again; of equally frequent pairs the one whose tokens come first in byte order is taken. The result depends on the
// texts alone, not on their order.
class BpeTrainer {
 public:
  // Counts the pre-tokens of a text; no merge ever crosses their borders. Any bytes are accepted.
  void add(std::string_view text);

  // A vocabulary of `entries` tokens: <s> <pad> </s> <unk> as 0 to 3, the 256 bytes, then the merges in their order.
  // Throws Error(Fault::input) when `entries` is below 260 or the texts hold too few pairs for so many.
  BpeFiles train(int entries) const;

 private:
  std::map<std::string, int64_t> pre_tokens_;
};

}  // namespace tercet
