// Fuzzer of the readers of .jsonl and .jsonl.gz. The first byte of an input chooses the options; an input whose bit 0
// is set is the text that is packed, one whose bit 1 is set is the file as it is.
#include "data/records.h"

#include <zlib.h>

#include "fuzz/json_mutator.h"
#include "text/unicode.h"

namespace tercet::fuzz {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) std::abort();
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string write_records(uint8_t choice, std::string_view text) {
  if ((choice & 1) != 0) return folder().write("packed.jsonl.gz", gzip(text));
  return folder().write((choice & 2) != 0 ? "raw.jsonl.gz" : "plain.jsonl", text);
}

}  // namespace
}  // namespace tercet::fuzz

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string path = fuzz::write_records(data[0], fuzz::text_of(data + 1, size - 1));
  RecordOptions options{.fields = {}, .allow_ids = (data[0] & 4) != 0};
  if ((data[0] & 8) != 0) options.prompt_template = PromptTemplate::human_assistant;
  if ((data[0] & 16) != 0) options.fields = {{"prompt", "question"}, {"response", "answer"}};
  fuzz::reads([&] {
    LineReader reader(path);
    for (std::string line; reader.next(line);)
      fuzz::reads([&] { parse_record(line, reader.where(), options).split_key(); });
  });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 4 == 0 || size < 2) return LLVMFuzzerMutate(data, size, max_size);
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  const size_t line = text.substr(0, text.size() / 2).rfind('\n') + 1;  // one in the middle, or the first
  const size_t end = std::min(text.find('\n', line), text.size());
  const std::string changed = fuzz::mutated_json(text.substr(line, end - line), end - line + 16, seed / 4);
  return fuzz::give(std::string(1, static_cast<char>(data[0])) + std::string(text.substr(0, line)) + changed +
                        std::string(text.substr(end)),
                    data, size, max_size);
}
