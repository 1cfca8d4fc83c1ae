// TensorBoard event files: a TFRecord per step of a run, each a protocol buffer of tensorflow.Event.
// Formats: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, framework/summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tercet {

// The first record of an event file. `wall_time` is in seconds since 1970.
std::string tensorboard_header(double wall_time);

// A record with one scalar per number (or truth value) among the members of `scalars`, their names as tags; the member
// "step" and other values are left out. "" when nothing is left.
std::string tensorboard_record(double wall_time, int64_t step, const Json& scalars);

// CRC-32C (Castagnoli; RFC 3720 appendix B.4), which records carry.
uint32_t crc32c(std::string_view bytes);

}  // namespace tercet
