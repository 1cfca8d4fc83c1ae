#include "kernels/emulator/settings.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace tercet::emu {
namespace {

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Order parse_order(const std::string& word) {
  if (word.empty() || word == "fifo") return Order::fifo;
  if (word == "lifo") return Order::lifo;
  if (word == "random") return Order::random;
  fail_input(fmt::format("unknown order \"{}\"", word), "TERCET_EMU_ORDER", "use fifo, lifo or random");
}

CopyLanding parse_copy(const std::string& word) {
  if (word.empty() || word == "late") return CopyLanding::late;
  if (word == "early") return CopyLanding::early;
  fail_input(fmt::format("unknown time of landing \"{}\"", word), "TERCET_EMU_COPY", "use late or early");
}

uint64_t parse_seed(const std::string& word) {
  uint64_t seed = 1;
  const char* end = word.data() + word.size();
  const auto [parsed, code] = std::from_chars(word.data(), end, seed);
  if (!word.empty() && (code != std::errc() || parsed != end))
    fail_input(fmt::format("\"{}\" is not a seed", word), "TERCET_EMU_SEED", "use a number from 0 on");
  return seed;
}

}  // namespace

Settings& settings() {
  static Settings current;
  return current;
}

Settings settings_from_environment() {
  return {.order = parse_order(environment("TERCET_EMU_ORDER")),
          .seed = parse_seed(environment("TERCET_EMU_SEED")),
          .copy = parse_copy(environment("TERCET_EMU_COPY"))};
}

std::string describe(const Settings& settings) {
  const char* copies = settings.copy == CopyLanding::late ? "late" : "early";
  if (settings.order == Order::random) return fmt::format("order random (seed {}), copies {}", settings.seed, copies);
  return fmt::format("order {}, copies {}", settings.order == Order::fifo ? "fifo" : "lifo", copies);
}

Statistics& statistics() {
  static Statistics counts;
  return counts;
}

}  // namespace tercet::emu
