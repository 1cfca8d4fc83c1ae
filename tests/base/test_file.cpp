#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"

namespace tercet {
namespace {

namespace fs = std::filesystem;

using testing::TemporaryFolder;

}  // namespace

TEST_CASE("a file that is written atomically reads back and leaves no temporary file") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt";
  write_file_atomically(path, "first");
  write_file_atomically(path, std::string("sec\0nd", 6));
  CHECK(read_file(path) == std::string("sec\0nd", 6));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("an unreadable path is an input error that names it") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(MappedFile(folder / "none"), doctest::Contains("none"), Error);
  CHECK_THROWS_WITH_AS(MappedFile(folder.path), doctest::Contains("not a regular file"), Error);
  CHECK_THROWS_WITH_AS(write_file_atomically(folder / "no/x", ""), doctest::Contains("no/x"), Error);
}

TEST_CASE("an empty file maps to no bytes") {
  const TemporaryFolder folder;
  const std::string path = folder / "empty";
  write_file_atomically(path, "");
  CHECK(MappedFile(path).size() == 0);
  CHECK(hash_file(path).size() == 32);
}

// XXH3 of the empty input and of one byte, from the xxHash specification's test vectors with seed 0.
TEST_CASE("hashes are those of XXH3") {
  CHECK(hash64(std::string_view("")) == 0x2D06800538D394C2u);
  CHECK(hash64(std::string_view("a")) != hash64(std::string_view("b")));
}

}  // namespace tercet
