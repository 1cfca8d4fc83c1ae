#include "store/zip_archive.h"

#include "store_test.h"

using namespace tercet;
using namespace tercet::test;

namespace {

std::string refused(const std::string& zip) {
  return refusal([&] { ZipArchive archive(std::as_bytes(std::span(zip)), "m.bin"); });
}

const std::vector<ZipEntry> kTwo = {{.name = "a/x", .data = "hello"}, {.name = "a/y", .data = ""}};

}  // namespace

TEST_CASE("entries are found by name, with 32-bit and ZIP64 records, sizes that follow and comments") {
  const std::vector<ZipEntry> following = {{.name = "a/x", .data = "hello", .sizes_follow = true},
                                           {.name = "a/y", .data = ""}};
  const std::vector<ZipEntry> wide = {{.name = "a/x", .data = "hello", .zip64 = true},
                                      {.name = "a/y", .data = "", .zip64 = true}};
  for (const std::string& zip :
       {make_zip(kTwo), make_zip(following), make_zip(wide), make_zip(kTwo, {.zip64_end = true}),
        make_zip(wide, {.zip64_end = true, .comment = "a comment"}), make_zip(kTwo, {.comment = "PK\x05\x06"})}) {
    const ZipArchive archive(std::as_bytes(std::span(zip)), "m.bin");
    CHECK(archive.entries().size() == 2);
    REQUIRE(archive.find("a/x") != nullptr);
    CHECK(archive.text(*archive.find("a/x")) == "hello");
    CHECK(archive.find("a/y")->bytes == 0);
    CHECK(archive.find("a/z") == nullptr);
  }
}

TEST_CASE("an archive cut anywhere is refused") {
  for (const std::string& whole : {make_zip(kTwo), make_zip(kTwo, {.zip64_end = true})})
    for (size_t kept = 0; kept < whole.size(); ++kept) {
      CAPTURE(kept);
      CHECK_FALSE(refused(whole.substr(0, kept)).empty());
    }
}

TEST_CASE("bytes after the archive or between its records are refused") {
  CHECK_REFUSED(refused(make_zip(kTwo) + "x"), "directory at the end is missing");
  CHECK_REFUSED(refused("x" + make_zip(kTwo)), "not where the archive's end says");
  CHECK_REFUSED(refused(make_zip(kTwo, {.before_end = "x"})), "not where the archive's end says");
  CHECK_REFUSED(refused(make_zip(kTwo, {.zip64_end = true, .before_end = "x"})), "not where the archive's end says");
}

TEST_CASE("compressed and encrypted entries are refused") {
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .method = 8}})), "\"x\" is compressed");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .flags = 1}})), "\"x\" is encrypted");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .flags = 0x40}})), "\"x\" is encrypted");
}

TEST_CASE("entries that overlap, repeat a name or lie outside the data are refused") {
  const std::vector<ZipEntry> overlapping = {{.name = "x", .data = "aaaa"},
                                             {.name = "x", .data = "bbbb", .offset_error = -44}};
  CHECK_REFUSED(refused(make_zip(overlapping)), "overlap");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a"}, {.name = "x", .data = "b"}})), "\"x\" appears twice");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .offset_error = 1}})),
                "does not begin where the directory says");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .offset_error = 1 << 20}})),
                "does not begin where the directory says");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .zip64 = true, .offset_error = -1}})),
                "does not begin where the directory says");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .sizes_follow = true, .size_error = 1}})),
                "reaches beyond the file's data");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .zip64 = true, .size_error = -2}})),
                "reaches beyond the file's data");
}

TEST_CASE("an entry whose own header says otherwise than the directory is refused") {
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .local_name = "y"}})), "another name in its own header");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .local_size_error = 1}})),
                "another size in its own header");
  CHECK_REFUSED(refused(make_zip({{.name = "x", .data = "a", .compressed_error = 1}})), "two different sizes");
}

TEST_CASE("a bomb of many directory entries on one file is refused as overlapping") {
  std::string zip = zip_local({.name = "x", .data = std::string(1000, 'a')});
  const uint64_t directory = zip.size();
  for (int i = 0; i < 1000; ++i) zip += zip_central({.name = "x", .data = std::string(1000, 'a')}, 0);
  zip += "PK\x05\x06" + bytes_of<uint32_t>(0) + bytes_of<uint16_t>(1000) + bytes_of<uint16_t>(1000) +
         bytes_of(static_cast<uint32_t>(zip.size() - directory)) + bytes_of(static_cast<uint32_t>(directory)) +
         bytes_of<uint16_t>(0);
  CHECK_REFUSED(refused(zip), "overlap");
}

TEST_CASE("records that contradict each other and archives of several disks are refused") {
  const std::string zip = make_zip(kTwo);
  const std::string wide = make_zip(kTwo, {.zip64_end = true});
  const auto altered = [](std::string text, size_t from_end, char value) {
    text[text.size() - from_end] = value;
    return refused(text);
  };
  CHECK_REFUSED(altered(zip, 18, 1), "several disks");
  CHECK_REFUSED(altered(zip, 14, 9), "contradicts itself");
  CHECK_REFUSED(altered(zip, 10, 9), "not where the archive's end says");
  CHECK_REFUSED(altered(wide, 6, 0), "contradicts its 32-bit record");
  CHECK_REFUSED(altered(wide, 22 + 4, 2), "several disks");
  CHECK_REFUSED(altered(wide, 22 + 12, 1), "not where its locator says");
  const std::string many = make_zip({kTwo[0]}, {.zip64_end = true});
  CHECK_REFUSED(altered(many, 22 + 20 + 24, 2), "contradicts its 32-bit record");
}

TEST_CASE("every single altered byte of an archive is refused or leaves its entries inside the file") {
  const std::string whole = make_zip(kTwo, {.zip64_end = true});
  for (size_t i = 0; i < whole.size(); ++i)
    for (const int change : {1, 0x80, 0xFF}) {
      std::string zip = whole;
      zip[i] = static_cast<char>(zip[i] ^ change);
      try {
        const ZipArchive archive(std::as_bytes(std::span(zip)), "m.bin");
        for (const auto& [name, entry] : archive.entries())
          CHECK((entry.offset <= zip.size() && entry.bytes <= zip.size() - entry.offset));
      } catch (const Error& error) {
        CHECK(error.fault() == Fault::input);
      }
    }
}
