#include "base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

namespace tercet {

void release_pages(const MappedFile& file, std::span<const std::byte> part) {
  const std::span<const std::byte> all = file.bytes();
  TERCET_REQUIRE(part.data() >= all.data() && part.data() + part.size() <= all.data() + all.size(),
                 "{} bytes are not a part of {}", part.size(), file.path());
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto before = static_cast<size_t>(part.data() - all.data()) % page;  // a mapping begins with a page
  // Advice only: what fails to be released stays.
  ::madvise(const_cast<std::byte*>(part.data() - before), part.size() + before, MADV_DONTNEED);
}

}  // namespace tercet
