#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "data/data_files.h"
#include "data/records.h"

using namespace tercet;
using namespace tercet::testing;

namespace {

std::vector<std::string> lines_of(const std::string& path) {
  LineReader reader(path);
  std::vector<std::string> lines;
  std::string line;
  while (reader.next(line)) {
    lines.push_back(line);
    CHECK(reader.line_number() == static_cast<int64_t>(lines.size()));
  }
  CHECK_FALSE(reader.next(line));
  return lines;
}

using Lines = std::vector<std::string>;

std::string many_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += "line " + std::to_string(i) + std::string(static_cast<size_t>(i % 977), 'x') + '\n';
  return text;
}

}  // namespace

TEST_CASE("lines of plain files, with and without a last line feed") {
  const DataFolder folder;
  CHECK(lines_of(folder.write("a.jsonl", "one\n\ntwo\r\nthree")) == Lines{"one", "", "two\r", "three"});
  CHECK(lines_of(folder.write("b.jsonl", "one\n")) == Lines{"one"});
  CHECK(lines_of(folder.write("c.jsonl", "")).empty());
  CHECK(lines_of(folder.write("d.jsonl", std::string("a\0b\n", 4))) == Lines{std::string("a\0b", 3)});
}

TEST_CASE("lines longer than any buffer, plain and gzipped, are whole") {
  const DataFolder folder;
  const std::string line(300000, 'y');
  CHECK(lines_of(folder.write("a.jsonl", line + "\nz\n")) == Lines{line, "z"});
  CHECK(lines_of(folder.write("a.jsonl.gz", gzipped(line + "\nz\n"))) == Lines{line, "z"});
}

TEST_CASE("a gzip file reads as the plain one, in one member or several") {
  const DataFolder folder;
  const std::string text = many_lines(2000);
  const Lines plain = lines_of(folder.write("a.jsonl", text));
  CHECK(plain.size() == 2000);
  CHECK(lines_of(folder.write("a.jsonl.gz", gzipped(text))) == plain);
  CHECK(lines_of(folder.write("b.jsonl.gz",
                              gzipped(text.substr(0, 12345)) + gzipped("") + gzipped(text.substr(12345)))) == plain);
}

TEST_CASE("truncated and damaged gzip data is an error that names file and line") {
  const DataFolder folder;
  const std::string whole = gzipped(many_lines(2000));
  const auto error_of = [&](const std::string& bytes) {
    const std::string path = folder.write("a.jsonl.gz", bytes);
    return folder.input_error([&] { lines_of(path); });
  };
  const std::string cut = error_of(whole.substr(0, whole.size() / 2));
  CHECK(cut.starts_with("D/a.jsonl.gz:"));
  CHECK(cut.ends_with(": the gzip data ends early; fetch the file again"));
  CHECK(error_of(whole.substr(0, whole.size() - 1)).find("the gzip data ends early") != std::string::npos);
  CHECK(error_of(whole.substr(0, 5)) == "D/a.jsonl.gz:1: the gzip data ends early; fetch the file again");
  std::string flipped = whole;
  flipped[whole.size() - 6] = static_cast<char>(flipped[whole.size() - 6] ^ 1);  // of the check sum
  const std::string damaged = error_of(flipped);
  CHECK(damaged.starts_with("D/a.jsonl.gz:"));
  CHECK(damaged.ends_with(": the gzip data is damaged (incorrect data check); fetch the file again"));
  CHECK(error_of(whole + "trailing").find("the gzip data is damaged (incorrect header check)") != std::string::npos);
}

TEST_CASE("name and content must agree about gzip") {
  const DataFolder folder;
  const std::string wrong_name = folder.write("a.jsonl", gzipped("x\n"));
  CHECK(folder.input_error([&] { LineReader reader(wrong_name); }) ==
        "D/a.jsonl: the content is gzip; let the name end in .gz");
  const std::string wrong_content = folder.write("b.jsonl.gz", "x\n");
  CHECK(folder.input_error([&] { LineReader reader(wrong_content); }) ==
        "D/b.jsonl.gz: the name ends in .gz but the content is not gzip; rename the file");
}

TEST_CASE("a file that cannot be opened or is a folder is an error") {
  const DataFolder folder;
  CHECK(folder.input_error([&] { LineReader reader(folder.path("none.jsonl")); }) ==
        "D/none.jsonl: cannot open the file: No such file or directory; check the path");
  CHECK(folder.input_error([&] { LineReader reader(folder.path("")); }) ==
        "D/: cannot read: Is a directory; give a file");
}

TEST_CASE("a line without an end, a gzip bomb among them, is refused before it fills the memory") {
  const DataFolder folder;
  const std::string member = gzipped(std::string(size_t{8} << 20, 'a'));
  std::string bomb = gzipped("{}\n");
  for (int i = 0; i < 100; ++i) bomb += member;
  CHECK(bomb.size() < 1'000'000);
  const std::string path = folder.write("bomb.jsonl.gz", bomb);
  CHECK(folder.input_error([&] {
    LineReader reader(path);
    for (std::string line; reader.next(line);) continue;
  }) == "D/bomb.jsonl.gz:2: a line of more than 64 MiB; write one record a line");
}
