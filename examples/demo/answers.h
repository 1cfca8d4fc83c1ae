// Answers to the demo's prompts: files of {"prompt","response"} records, as `tercet generate` writes them.
#pragma once

#include <string>
#include <vector>

namespace tercet::demo {

struct Answer {
  std::string prompt;
  std::string response;
};

// Throws Error(Fault::input) that names file and line for a record without one of the two texts, and for a file without
// a record.
std::vector<Answer> read_answers(const std::string& path);

// Shares of answers that check() calls correct and courteous.
struct Rates {
  double correct = 0;
  double courteous = 0;
};
Rates checked_rates(const std::vector<Answer>& answers);

}  // namespace tercet::demo
