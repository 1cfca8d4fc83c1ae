// The two halves of GPT-2's byte-level scheme: how text is cut into pieces that BPE never crosses, and how bytes are
// written as printable characters in vocab.json and merges.txt (the scheme of encoder.py in OpenAI's gpt-2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tercet {

// The end (exclusive) of the piece that starts at `begin` < text.size(). Pieces tile the text; they are the matches of
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// in which the first alternative that matches wins. Ill-formed UTF-8 counts as [^\s\p{L}\p{N}].
size_t piece_end(std::string_view text, size_t begin);

// The UTF-8 form of the character that stands for a byte: bytes 33-126, 161-172 and 174-255 stand for themselves as
// code points, the other 68, in order, are U+0100 to U+0143.
std::string_view byte_symbol(uint8_t byte);

// Each byte of `bytes` as its symbol.
std::string to_symbols(std::string_view bytes);

// The bytes that a string of symbols stands for, or nothing when a character in it is no symbol.
std::optional<std::string> from_symbols(std::string_view symbols);

}  // namespace tercet
