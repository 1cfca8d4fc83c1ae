// Opens the device named on the command line: exit 0 when this build and machine have it, 77 (skipped) with the reason
// when not.
#include <fmt/format.h>

#include "base/error.h"
#include "device/device.h"

int main(int count, char** words) {
  if (count != 2) return 2;
  try {
    fmt::print("{}\n", tercet::open_device(words[1])->description());
    return 0;
  } catch (const tercet::Error& error) {
    fmt::print("skipped: {}\n", error.what());
    return 77;
  }
}
