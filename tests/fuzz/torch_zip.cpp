// Fuzzer of the reader of PyTorch files: the zip directory and the pickle in it. Most mutations change one entry and
// build a whole archive around it.
#include "store/torch_zip.h"

#define DOCTEST_CONFIG_DISABLE
#include "fuzz/fuzz.h"
#include "fuzz/readable.h"
#include "store/store_test.h"

namespace tercet::fuzz {
namespace {

std::vector<test::ZipEntry> entries_of(std::string_view file) {
  std::vector<test::ZipEntry> entries;
  reads([&] {
    const ZipArchive archive(std::as_bytes(std::span(file)), "input");
    for (const auto& [name, entry] : archive.entries())
      entries.push_back({.name = name, .data = std::string(archive.text(entry))});
  });
  std::ranges::sort(entries, {}, &test::ZipEntry::name);
  return entries;
}

}  // namespace
}  // namespace tercet::fuzz

using namespace tercet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("pytorch_model.bin", fuzz::text_of(data, size));
  fuzz::reads([&] { fuzz::read_tensors(TorchZipReader(path)); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::vector<test::ZipEntry> entries;
  if (seed % 4 != 0) entries = fuzz::entries_of(fuzz::text_of(data, size));
  if (entries.empty()) return LLVMFuzzerMutate(data, size, max_size);
  const auto pickle =
      std::ranges::find_if(entries, [](const test::ZipEntry& entry) { return entry.name.ends_with("data.pkl"); });
  const size_t any = seed / 8 % entries.size();
  test::ZipEntry& entry = seed % 8 < 6 && pickle != entries.end() ? *pickle : entries[any];
  if (seed % 32 == 7)
    entry.name = fuzz::mutated(entry.name, entry.name.size() + 4);
  else
    entry.data = fuzz::mutated(entry.data, entry.data.size() + 64);
  return fuzz::give(test::make_zip(entries, {.zip64_end = seed % 16 == 5}), data, size, max_size);
}
