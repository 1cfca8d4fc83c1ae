#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "data/dataset.h"

namespace tercet {

void DropCounts::add(std::string_view drop_class, const std::string& where) {
  const std::string name(drop_class);
  ++by_class[name];
  first_of_class.emplace(name, where);
}

int64_t DropCounts::count(std::string_view drop_class) const {
  const auto found = by_class.find(std::string(drop_class));
  return found == by_class.end() ? 0 : found->second;
}

int64_t DropCounts::total() const {
  return std::accumulate(by_class.begin(), by_class.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

std::string DropCounts::text() const {
  std::string text = fmt::format("{} record{} read", records, records == 1 ? "" : "s");
  if (other_shares > 0) text += fmt::format("; {} left to other steps", other_shares);
  if (truncated > 0) text += fmt::format("; {} cut to --max-length", truncated);
  if (by_class.empty()) return text;
  text += fmt::format("; {} dropped: ", total());
  std::vector<std::string> classes;
  for (const auto& [name, number] : by_class)
    classes.push_back(fmt::format("{} {} (first at {})", number, name, first_of_class.at(name)));
  return text + fmt::format("{}", fmt::join(classes, ", "));
}

Json DropCounts::json() const {
  Json dropped = Json::object();
  for (const auto& [name, number] : by_class) dropped.set(name, number);
  Json json = Json::object();
  json.set("records", records).set("other_shares", other_shares).set("truncated", truncated).set("dropped", dropped);
  return json;
}

}  // namespace tercet
