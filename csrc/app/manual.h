// What `make install` puts beside the program, made from the table of flags: `tercet --man`, `tercet
// --bash-completion`.
#pragma once

#include <string>

namespace tercet {

// tercet.1, for man.
std::string manual_page();

// A completion script for bash: commands, their flags, and the values of flags that name them.
std::string bash_completion();

}  // namespace tercet
