#include <doctest/doctest.h>

#include <stdexcept>

#include "device/profile_scope.h"
#include "recording_stream.h"

using namespace tercet;
using namespace tercet::test;

TEST_CASE("profile scopes nest, and close when an exception leaves them") {
  const auto device = open_device("cpu");
  ProfileRanges ranges;
  RecordingStream stream(device->create_stream(), ranges);
  const ProfileScope step(stream, "step");
  const auto failing = [&] {
    const ProfileScope forward(stream, "forward");
    const ProfileScope attention(stream, "attention");
    throw std::runtime_error("out of luck");
  };
  CHECK_THROWS_AS(failing(), std::runtime_error);
  CHECK(ranges.open == std::vector<std::string>{"step"});
  { const ProfileScope backward(stream, "backward"); }
  CHECK(ranges.paths ==
        std::vector<std::string>{"step", "step > forward", "step > forward > attention", "step > backward"});
  CHECK(ranges.open == std::vector<std::string>{"step"});
  CHECK_FALSE(ranges.closed_too_often);
}
