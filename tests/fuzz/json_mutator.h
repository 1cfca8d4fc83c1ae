// Mutations of JSON that leave it JSON, so that a fuzzer gets past the parser.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "fuzz/fuzz.h"

namespace tercet::fuzz {

class JsonMutator {
 public:
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  // Changes one value or member somewhere in the document.
  void mutate(Json& root) {
    std::vector<Json*> nodes;
    collect(root, nodes);
    change(*nodes[below(nodes.size())]);
  }

  size_t below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

 private:
  static void collect(Json& value, std::vector<Json*>& nodes) {
    nodes.push_back(&value);
    if (value.is_array())
      for (Json& item : value.as_array()) collect(item, nodes);
    if (value.is_object())
      for (auto& member : value.as_object()) collect(member.second, nodes);
  }

  Json any() {
    switch (below(9)) {
      case 0:
        return Json();
      case 1:
        return Json(below(2) == 0);
      case 2:
        return Json(static_cast<int64_t>(below(300)));
      case 3:
        return Json(-static_cast<int64_t>(below(5)));
      case 4:
        return Json(uint64_t{1} << below(64));
      case 5:
        return Json(1.5);
      case 6:
        return Json("");
      case 7:
        return Json(Json::array());
      default:
        return Json(Json::object());
    }
  }

  template <class Items>
  void change_items(Items& items) {
    if (items.empty()) return;
    const auto at = items.begin() + static_cast<std::ptrdiff_t>(below(items.size()));
    if (below(2) == 0) {
      items.erase(at);
    } else {
      const auto copy = *at;
      items.insert(items.begin() + static_cast<std::ptrdiff_t>(below(items.size())), copy);
    }
  }

  void change(Json& value) {
    if (below(4) == 0) {
      value = any();
    } else if (value.is_string()) {
      value = Json(mutated(value.as_string(), value.as_string().size() + 8));
    } else if (value.is_array()) {
      change_items(value.as_array());
    } else if (value.is_object() && !value.as_object().empty() && below(2) == 0) {
      std::string& key = value.as_object()[below(value.as_object().size())].first;
      key = mutated(key, key.size() + 4);
    } else if (value.is_object()) {
      change_items(value.as_object());
    } else if (value.is_integer()) {
      value = Json(static_cast<int64_t>(below(64)));
    } else {
      value = any();
    }
  }

  std::minstd_rand random_;
};

// `text` with one change inside the document, or with plain mutations when it is no JSON or, now and then, anyway.
inline std::string mutated_json(std::string_view text, size_t max_size, unsigned seed) {
  Json json;
  const bool parsed = seed % 4 != 0 && reads([&] { json = parse_json(text, "input"); });
  if (!parsed) return mutated(std::string(text), max_size);
  JsonMutator(seed).mutate(json);
  return json.dump();
}

}  // namespace tercet::fuzz
