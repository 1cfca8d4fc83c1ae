// Addresses of code as places in source files.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

namespace tercet::emu {

// "kernels/gpu.h:52, called at kernels/layer_norm.cu:88" by binutils' addr2line, or "library+0x1234" where there is no
// addr2line or no debug information. Slow: for messages.
std::string source_line(uintptr_t code);

// "kernels/adamw.cu:31"
std::string source_line(const std::source_location& site);

}  // namespace tercet::emu
