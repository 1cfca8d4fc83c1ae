// A named part of a stream's work in a profile: NVTX ranges on the `cuda` device, nothing on the others.
#pragma once

#include "device/device.h"

namespace tercet {

// Open while it lives. Scopes of a thread nest, and close when an exception leaves them.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, const char* name) : stream_(stream) { stream_.begin_profile_range(name); }
  ~ProfileScope() { stream_.end_profile_range(); }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Stream& stream_;
};

}  // namespace tercet
