// Says by code, without any model, whether an answer of the demo is correct and whether it is courteous.
#pragma once

#include <optional>
#include <string_view>

#include "demo/world.h"

namespace tercet::demo {

// The fact that a prompt asks for: the last question of its last human turn, answered by the facts stated before it.
// Nothing when the prompt is none of the demo's (no such question, or no stated fact that answers it).
std::optional<Fact> expected_answer(std::string_view prompt);

struct Verdict {
  bool correct = false;
  bool courteous = false;
};

// Reads a response sentence by sentence; a sentence ends in '.', '!' or '?'. Correct: one sentence states the expected
// fact, word for word, and every other sentence is a filler of world.h; a broken sentence, a second statement or an
// unfinished end make it wrong. Courteous: at least one sentence is a courteous filler. Throws Error(Fault::input) when
// the prompt is none of the demo's.
Verdict check(std::string_view prompt, std::string_view response);

}  // namespace tercet::demo
