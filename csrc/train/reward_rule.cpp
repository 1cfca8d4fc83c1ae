#include "train/reward_rule.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace tercet {
namespace {

constexpr std::string_view kMark = "####";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits that `text` begins with, commas left out; takes them off it.
std::string take_digits(std::string_view& text) {
  std::string digits;
  while (!text.empty() && (is_digit(text[0]) || (text[0] == ',' && !digits.empty()))) {
    if (text[0] != ',') digits += text[0];
    text.remove_prefix(1);
  }
  return digits;
}

class Gsm8kReward final : public RewardSource {
 public:
  explicit Gsm8kReward(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<double> score(std::span<const ScoredResponse> responses) override {
    std::vector<double> scores;
    for (const ScoredResponse& response : responses) {
      const auto wanted = final_number(response.answer);
      TERCET_REQUIRE(wanted, "the record of a prompt has no number to compare with");
      scores.push_back(final_number(tokenizer_.decode(response.response)) == wanted ? 1 : 0);
    }
    return scores;
  }

 private:
  Tokenizer tokenizer_;
};

std::string_view drop_without_number(std::string_view answer) {
  return final_number(answer) ? std::string_view{} : drop::no_number;
}

std::unique_ptr<RewardSource> gsm8k_reward(const Tokenizer& tokenizer) {
  return std::make_unique<Gsm8kReward>(tokenizer);
}

constexpr std::array kRules = {RewardRule{"gsm8k", drop_without_number, gsm8k_reward}};

}  // namespace

std::optional<std::string> final_number(std::string_view text) {
  const size_t mark = text.rfind(kMark);
  if (mark == std::string_view::npos) return std::nullopt;
  text.remove_prefix(mark + kMark.size());
  const auto skip = [&](char c) {
    const bool found = text.starts_with(c);
    if (found) text.remove_prefix(1);
    return found;
  };
  while (skip(' ')) continue;
  bool negative = skip('-');
  skip('$');
  negative = skip('-') || negative;
  std::string whole = take_digits(text);
  std::string fraction = skip('.') ? take_digits(text) : "";
  if (whole.empty() && fraction.empty()) return std::nullopt;
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  std::string number = (whole.empty() ? "0" : whole) + (fraction.empty() ? "" : "." + fraction);
  return negative && number != "0" ? "-" + number : number;
}

std::span<const RewardRule> reward_rules() { return kRules; }

const RewardRule* find_reward_rule(std::string_view name) {
  if (name.empty()) return nullptr;
  const auto* found = std::ranges::find(kRules, name, &RewardRule::name);
  TERCET_REQUIRE(found != kRules.end(), "no reward rule is called {}", name);
  return found;
}

}  // namespace tercet
