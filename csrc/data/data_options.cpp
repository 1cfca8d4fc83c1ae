#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/loader.h"

namespace tercet {
namespace {

constexpr double largest_weight = 500;  // Sequence::sample counts copies in 9 bits

void check_limits(const DataOptions& options) {
  if (options.max_length < 0 || (options.max_length > 0 && options.max_length < 3))
    fail_input(fmt::format("{} ids cannot hold an answer", options.max_length), "--max-length",
               "a sequence needs at least 3: id 2, an answer, id 2");
  if (options.max_prompt_tokens < 0)
    fail_input(fmt::format("{} is negative", options.max_prompt_tokens), "--max-prompt-tokens");
  if (options.max_bad_records < 0)
    fail_input(fmt::format("{} is negative", options.max_bad_records), "--max-bad-records");
  if (!options.split.empty() &&
      (options.split_share < 0 || static_cast<size_t>(options.split_share) >= options.split.size()))
    fail_input(fmt::format("there is no share {} among {}", options.split_share, options.split.size()), "--split");
}

}  // namespace

std::vector<double> parse_split(std::string_view text) {
  std::vector<double> shares;
  double total = 0;
  const auto fail = [&] {
    fail_input(fmt::format("\"{}\" is not a list of shares", text), "--split", "for example 2,4,4");
  };
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    double share = 0;
    const auto [end, status] = std::from_chars(item.data(), item.data() + item.size(), share);
    if (status != std::errc() || end != item.data() + item.size() || !std::isfinite(share) || share < 0) fail();
    shares.push_back(share);
    total += share;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!(total > 0) || !std::isfinite(total)) fail();
  return shares;
}

DataPath parse_data_path(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return {text, 1};
  const char* begin = text.data() + equals + 1;
  const char* end = text.data() + text.size();
  double weight = 0;
  const auto [stop, status] = std::from_chars(begin, end, weight);
  if (begin == end || stop != end || status == std::errc::invalid_argument) return {text, 1};
  if (status != std::errc() || !std::isfinite(weight) || weight <= 0 || weight > largest_weight)
    fail_input(fmt::format("the weight {} is not above 0 and at most {}", text.substr(equals + 1), largest_weight),
               fmt::format("--data {}", text), "a weight is how often a record appears in an epoch");
  return {text.substr(0, equals), weight};
}

int split_share_of(std::string_view split_key, const std::vector<double>& split) {
  const double total = std::accumulate(split.begin(), split.end(), 0.0);
  const double point = static_cast<double>(hash64(split_key) >> 11) * 0x1p-53 * total;
  double cumulated = 0;
  int last_with_share = 0;
  for (size_t share = 0; share < split.size(); ++share) {
    if (split[share] <= 0) continue;
    last_with_share = static_cast<int>(share);
    cumulated += split[share];
    if (point < cumulated) break;
  }
  return last_with_share;
}

namespace data_detail {

Plan make_plan(const DataOptions& options, bool allow_ids) {
  check_limits(options);
  if (options.turns != "last" && options.turns != "all")
    fail_input(fmt::format("\"{}\" is neither last nor all", options.turns), "--turns");
  if (options.paths.empty()) fail_input("no files are given", "--data", "give at least one .jsonl or .jsonl.gz file");
  Plan plan;
  plan.record = {parse_prompt_template(options.prompt_template), parse_field_names(options.fields), allow_ids};
  plan.all_turns = options.turns == "all";
  for (const std::string& path : options.paths) plan.files.push_back(parse_data_path(path));
  return plan;
}

std::vector<size_t> draw(size_t n, size_t count, uint64_t seed, size_t file) {
  const RandomStream random(seed, RandomPurpose::split, file);
  std::vector<std::pair<uint64_t, size_t>> keys(n);
  for (size_t i = 0; i < n; ++i) {
    const auto words = random.block(i, 0, 0);
    keys[i] = {(uint64_t{words[0]} << 32) | words[1], i};
  }
  std::sort(keys.begin(), keys.end());
  std::vector<size_t> drawn(count);
  for (size_t i = 0; i < count; ++i) drawn[i] = keys[i].second;
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace data_detail
}  // namespace tercet
