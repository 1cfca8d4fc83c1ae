// Fuzzer of the reader of tokenizer.json. What is read must encode any text and give it back.
#include "fuzz/json_mutator.h"
#include "text/tokenizer.h"

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::folder().write("tokenizer.json", fuzz::text_of(data, size));
  fuzz::reads([&] {
    const Tokenizer tokenizer = Tokenizer::load(fuzz::folder().path());
    const std::string text = "\n\nHuman: the other hen's 12 </s>\xff\xf0\x9f\x90\x94 ";
    if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
    tokenizer.decode_utf8(tokenizer.encode_with_specials(text), true);
  });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const std::string_view text = fuzz::text_of(data, size);
  return fuzz::give(fuzz::mutated_json(text, size + 32, seed), data, size, max_size);
}
