// A tokenizer small enough to read: four special entries, the 256 bytes, and the merges that a test asks for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace tercet::testing {

// Bytes have the ids 4 to 259 in order; merge k has the id 260 + k.
inline Json small_vocabulary(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocabulary = Json::object();
  int64_t id = 0;
  for (const char* special : {"<s>", "<pad>", "</s>", "<unk>"}) vocabulary.set(special, id++);
  for (int byte = 0; byte < 256; ++byte) vocabulary.set(std::string(byte_symbol(static_cast<uint8_t>(byte))), id++);
  for (const auto& [left, right] : merges) vocabulary.set(to_symbols(left + right), id++);
  return vocabulary;
}

inline std::string small_merges(const std::vector<std::pair<std::string, std::string>>& merges) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += to_symbols(left) + ' ' + to_symbols(right) + '\n';
  return text;
}

inline Tokenizer small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  return Tokenizer::from_texts(small_vocabulary(merges).dump(), small_merges(merges), "small tokenizer");
}

// The id of a byte in small_tokenizer.
constexpr int32_t byte_id(char byte) { return 4 + static_cast<uint8_t>(byte); }

}  // namespace tercet::testing
