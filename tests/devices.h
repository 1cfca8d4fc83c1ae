// The devices that tests run on.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace tercet::test {

namespace devices {

// The names in TERCET_TEST_DEVICES ("cuda", "emu,cuda"). A device that is asked for must be there.
inline std::vector<std::string> required(const std::string& names) {
  std::vector<std::string> devices;
  std::istringstream words(names);
  for (std::string name; std::getline(words, name, ',');) {
    open_device(name);
    devices.push_back(name);
  }
  return devices;
}

inline std::vector<std::string> found() {
  std::vector<std::string> devices;
  for (const char* name : {"cpu", "emu", "cuda"}) {
    try {
      open_device(name);
      devices.emplace_back(name);
    } catch (const Error& error) {
      const std::string reason = std::string(name) + " is skipped: " + error.what();
      MESSAGE(reason);
    }
  }
  return devices;
}

}  // namespace devices

// Those of "cpu", "emu" and "cuda" that this build and machine have, or those that the environment variable
// TERCET_TEST_DEVICES names; throws Error when one of these is missing.
inline const std::vector<std::string>& present_devices() {
  static const std::vector<std::string> present = [] {
    const char* names = std::getenv("TERCET_TEST_DEVICES");
    return names == nullptr ? devices::found() : devices::required(names);
  }();
  return present;
}

// Those of them that run on a GPU's threads.
inline const std::vector<std::string>& present_gpu_devices() {
  static const std::vector<std::string> present = [] {
    std::vector<std::string> gpus = present_devices();
    std::erase(gpus, "cpu");
    return gpus;
  }();
  return present;
}

}  // namespace tercet::test
