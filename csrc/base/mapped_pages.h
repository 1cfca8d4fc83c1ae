// Bounds the resident memory of a pass over a mapped file.
#pragma once

#include <cstddef>
#include <span>

#include "base/file.h"

namespace tercet {

// Takes the pages of `part` of the file out of this process's memory; an access maps them again, from the system's
// cache or from disk. Other threads may read the file meanwhile.
void release_pages(const MappedFile& file, std::span<const std::byte> part);

}  // namespace tercet
