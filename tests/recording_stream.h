// A stream that passes everything on and records the ranges that a profiler would show.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace tercet::test {

// Ranges in the order in which they began, each after the names of those around it: "rollout > sample".
struct ProfileRanges {
  std::vector<std::string> paths;
  std::vector<std::string> open;
  bool closed_too_often = false;

  bool contain(const std::string& path) const {
    for (const std::string& one : paths)
      if (one == path) return true;
    return false;
  }
};

class RecordingStream final : public Stream {
 public:
  RecordingStream(std::unique_ptr<Stream> stream, ProfileRanges& ranges)
      : stream_(std::move(stream)), ranges_(ranges) {}

  Device& device() override { return stream_->device(); }
  void copy_to_device(void* target, const void* source, size_t bytes) override {
    stream_->copy_to_device(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, size_t bytes) override {
    stream_->copy_to_host(target, source, bytes);
  }
  void copy_on_device(void* target, const void* source, size_t bytes) override {
    stream_->copy_on_device(target, source, bytes);
  }
  void fill_zero(void* target, size_t bytes) override { stream_->fill_zero(target, bytes); }
  std::unique_ptr<Event> record() override { return stream_->record(); }
  void wait(Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  void begin_profile_range(const char* name) override {
    ranges_.open.emplace_back(name);
    std::string path;
    for (const std::string& part : ranges_.open) path += (path.empty() ? "" : " > ") + part;
    ranges_.paths.push_back(std::move(path));
  }
  void end_profile_range() override {
    ranges_.closed_too_often |= ranges_.open.empty();
    if (!ranges_.open.empty()) ranges_.open.pop_back();
  }

 private:
  std::unique_ptr<Stream> stream_;
  ProfileRanges& ranges_;
};

}  // namespace tercet::test
