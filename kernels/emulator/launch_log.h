// Which kernels have run, for a test that all of them do (tests/kernels/coverage.sh).
#pragma once

namespace tercet::emu {

// Counts a launch of the kernel at this address. When the process ends, the file that the environment variable
// TERCET_EMU_LAUNCHES names is written: a line "address launches" per kernel, in hexadecimal as nm prints the addresses
// of the library that holds the kernels. Without the variable nothing is counted.
void count_launch(const void* kernel);

}  // namespace tercet::emu
