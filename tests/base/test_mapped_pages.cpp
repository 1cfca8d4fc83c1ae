#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/mapped_pages.h"

namespace tercet {
namespace {

size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_CASE("released pages are no more resident and read the same again") {
  constexpr size_t size = size_t{32} << 20;
  char path[] = "/tmp/tercet-pages-XXXXXX";
  REQUIRE(::close(::mkstemp(path)) == 0);
  write_file_atomically(path, std::string(size, 'x'));
  const MappedFile file(path);
  const auto all_x = [&] { return std::ranges::count(file.text(), 'x') == static_cast<std::ptrdiff_t>(size); };
  const size_t before = resident_bytes();
  CHECK(all_x());
  CHECK(resident_bytes() >= before + size / 2);
  for (size_t begin = 0; begin < size; begin += 1'000'003)  // parts need no alignment
    release_pages(file, file.bytes().subspan(begin, std::min<size_t>(1'000'003, size - begin)));
  CHECK(resident_bytes() < before + size / 4);
  CHECK(all_x());
  std::remove(path);

  const std::vector<std::byte> elsewhere(4096);
  CHECK_THROWS_AS(release_pages(file, elsewhere), Error);
  CHECK_THROWS_AS(release_pages(file, {file.bytes().data() + 1, size}), Error);
}

}  // namespace
}  // namespace tercet
