// How every loader of dataset.h reads: files, lines, records, shares, drops and weights. Private to data/.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/dataset.h"
#include "data/records.h"
#include "text/unicode.h"

namespace tercet::data_detail {

constexpr int64_t lines_per_batch = 256;
constexpr uint64_t part_shift = 36;
constexpr uint64_t part_count = uint64_t{1} << 18;
constexpr uint64_t copy_shift = 54;

// Sequence::sample of part `part` of a record, first copy.
inline uint64_t part_number(uint64_t record, size_t part) { return record + (part % part_count << part_shift); }

// DataOptions, checked and parsed.
struct Plan {
  RecordOptions record;
  std::vector<DataPath> files;
  bool all_turns = false;
};

// Throws Error(Fault::input) that names the flag on options that make no sense.
Plan make_plan(const DataOptions& options, bool allow_ids);

inline void set_copy(Sequence& sequence, uint64_t copy) { sequence.sample += copy << copy_shift; }
inline void set_copy(Prompt& prompt, uint64_t copy) { prompt.sample += copy << copy_shift; }
inline void set_copy(ScoreItem& item, uint64_t copy) {
  set_copy(item.sequence, copy);
  if (item.rejected) set_copy(*item.rejected, copy);
}
inline void set_copy(PreferencePair& pair, uint64_t copy) {
  set_copy(pair.chosen, copy);
  set_copy(pair.rejected, copy);
}

// `count` of the indices [0, n) in ascending order, drawn without replacement; the draw of each file is its own.
std::vector<size_t> draw(size_t n, size_t count, uint64_t seed, size_t file);

// The items of one file, each as often as the weight says.
template <class Item>
std::vector<Item> weighted(std::vector<Item> items, double weight, uint64_t seed, size_t file) {
  if (weight == 1) return items;
  const auto whole = static_cast<uint64_t>(weight);
  const double fraction = weight - static_cast<double>(whole);
  const auto extra = static_cast<size_t>(std::llround(fraction * static_cast<double>(items.size())));
  std::vector<Item> result;
  const auto add = [&](Item item, uint64_t copy) {
    set_copy(item, copy);
    result.push_back(std::move(item));
  };
  for (uint64_t copy = 0; copy < whole; ++copy)
    for (const Item& item : items) add(item, copy);
  for (const size_t index : draw(items.size(), extra, seed, file)) add(items[index], whole);
  return result;
}

struct Line {
  std::string text;
  std::string where;
  uint64_t record = 0;
};

// What became of one record.
template <class Item>
struct Outcome {
  std::optional<Error> bad;
  bool other_share = false;
  std::vector<Item> items;
  std::vector<std::string_view> drops;
  int64_t truncated = 0;
};

template <class Item>
struct Loaded {
  std::vector<Item> items;
  DropCounts drops;
};

// Reads all files: every line becomes a Record, every record of the wanted share becomes items by `build`, in parallel;
// then, in order, `accept` may drop an item by naming its class.
template <class Item>
class Loader {
 public:
  using Check = std::function<void(const Record&, const std::string& where)>;
  using Build = std::function<void(const Record&, const Line&, Outcome<Item>&)>;
  using Accept = std::function<std::string_view(const Item&)>;

  Loader(const DataOptions& options, const Plan& plan) : options_(options), plan_(plan) {}

  // `check` throws on a record of a form that cannot be used, which is then a bad one.
  Loaded<Item> load(const Check& check, const Build& build, const Accept& accept = nullptr) {
    for (size_t file = 0; file < plan_.files.size(); ++file) {
      std::vector<Item> items;
      LineReader reader(plan_.files[file].path);
      for (std::vector<Line> lines = take_lines(reader); !lines.empty(); lines = take_lines(reader)) {
        std::vector<Outcome<Item>> outcomes = process(lines, check, build);
        for (size_t i = 0; i < lines.size(); ++i) merge(std::move(outcomes[i]), lines[i], accept, items);
      }
      for (Item& item : weighted(std::move(items), plan_.files[file].weight, options_.seed, file))
        loaded_.items.push_back(std::move(item));
    }
    if (loaded_.items.empty()) fail_no_record();
    return std::move(loaded_);
  }

 private:
  std::vector<Line> take_lines(LineReader& reader) {
    std::vector<Line> lines;
    std::string text;
    while (static_cast<int64_t>(lines.size()) < lines_per_batch && reader.next(text)) {
      if (strip_spaces(text).empty()) continue;
      lines.push_back({std::move(text), reader.where(), static_cast<uint64_t>(loaded_.drops.records++)});
    }
    return lines;
  }

  std::vector<Outcome<Item>> process(const std::vector<Line>& lines, const Check& check, const Build& build) const {
    std::vector<Outcome<Item>> outcomes(lines.size());
    thread_pool().for_ranges(static_cast<int64_t>(lines.size()), 8, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        Record record;
        try {
          record = parse_record(lines[i].text, lines[i].where, plan_.record);
          check(record, lines[i].where);
        } catch (const Error& error) {
          outcomes[i].bad = error;
          continue;
        }
        outcomes[i].other_share =
            !options_.split.empty() && split_share_of(record.split_key(), options_.split) != options_.split_share;
        if (!outcomes[i].other_share) build(record, lines[i], outcomes[i]);
      }
    });
    return outcomes;
  }

  void merge(Outcome<Item> outcome, const Line& line, const Accept& accept, std::vector<Item>& items) {
    DropCounts& drops = loaded_.drops;
    if (outcome.bad) {
      drops.add(drop::bad_record, line.where);
      if (drops.count(drop::bad_record) > options_.max_bad_records) fail_bad_record(*outcome.bad);
    }
    drops.other_shares += outcome.other_share ? 1 : 0;
    drops.truncated += outcome.truncated;
    for (const std::string_view drop_class : outcome.drops) drops.add(drop_class, line.where);
    for (Item& item : outcome.items) {
      const std::string_view drop_class = accept ? accept(item) : std::string_view{};
      if (drop_class.empty()) {
        items.push_back(std::move(item));
      } else {
        drops.add(drop_class, line.where);
      }
    }
  }

  [[noreturn]] void fail_bad_record(const Error& error) const {
    if (options_.max_bad_records == 0)
      fail_input(error.what(), "", "correct it, or leave out up to N bad records with --max-bad-records N");
    fail_input(error.what(), "",
               fmt::format("it is bad record {} where --max-bad-records allows {}; the first is {}",
                           loaded_.drops.count(drop::bad_record), options_.max_bad_records,
                           loaded_.drops.first_of_class.at(std::string(drop::bad_record))));
  }

  [[noreturn]] void fail_no_record() const {
    std::vector<std::string_view> names;
    for (const DataPath& file : plan_.files) names.push_back(file.path);
    fail_input(fmt::format("no usable record ({})", loaded_.drops.text()), fmt::format("{}", fmt::join(names, ", ")),
               "give data that fits, or other limits");
  }

  const DataOptions& options_;
  const Plan& plan_;
  Loaded<Item> loaded_;
};

}  // namespace tercet::data_detail
