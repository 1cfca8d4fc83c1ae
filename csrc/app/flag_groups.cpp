#include "app/flag_groups.h"

#include <algorithm>

namespace tercet {
namespace {

FlagCheck check(std::string expected, bool (*holds)(double)) {
  return {std::move(expected), [holds](const Json& value) { return holds(value.as_double()); }};
}

std::vector<Flag> all_flags() {
  std::vector<Flag> all;
  for (auto* part :
       {file_flags, data_flags, training_flags, ppo_flags, sampling_flags, measuring_flags, device_flags, run_flags})
    std::ranges::move(part(), std::back_inserter(all));
  return all;
}

}  // namespace

FlagCheck positive() {
  return check("a value above 0", [](double x) { return x > 0; });
}
FlagCheck not_negative() {
  return check("0 or more", [](double x) { return x >= 0; });
}
FlagCheck unit_interval() {
  return check("a value between 0 and 1", [](double x) { return x >= 0 && x <= 1; });
}
FlagCheck below_one() {
  return check("a value from 0 to below 1", [](double x) { return x >= 0 && x < 1; });
}
FlagCheck share() {
  return check("a value above 0, at most 1", [](double x) { return x > 0 && x <= 1; });
}
FlagCheck at_least_two() {
  return check("2 or more", [](double x) { return x >= 2; });
}

FlagCheck one_of(std::vector<std::string> names) {
  std::string expected;
  for (size_t i = 0; i < names.size(); ++i)
    expected += (expected.empty() ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return {expected, [names = std::move(names)](const Json& value) {
            return std::ranges::find(names, value.as_string()) != names.end();
          }};
}

FlagCheck always_on() {
  return {"on: the cpu repeats every run bit for bit and cannot do otherwise",
          [](const Json& value) { return value.as_bool(); }};
}

Flag::Refusal refused_by_ppo(std::string what, std::string remedy) {
  return {"ppo", std::move(what), std::move(remedy)};
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> table = all_flags();
  return table;
}

}  // namespace tercet
