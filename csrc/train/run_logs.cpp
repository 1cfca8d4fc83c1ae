#include "train/run_logs.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/file.h"

namespace tercet {

void for_each_log_line(const std::string& folder, const std::string& log,
                       const std::function<void(const Json&)>& visit) {
  const std::string path = folder + "/" + log;
  if (!std::filesystem::exists(path)) return;
  const MappedFile file(path);
  const std::string_view text = file.text();
  int64_t number = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1)
    visit(parse_json(text.substr(begin, end - begin), fmt::format("{}:{}", path, ++number)));
}

LogColumns LogColumns::read(const std::string& folder, const std::string& log) {
  LogColumns columns;
  for_each_log_line(folder, log, [&](const Json& line) { columns.add(line); });
  return columns;
}

void LogColumns::add(const Json& line) {
  for (const auto& [name, value] : line.as_object()) {
    const bool unbounded = value == Json("nan") || value == Json("inf") || value == Json("-inf");
    if (!value.is_number() && !unbounded) continue;
    const auto [column, added] = columns_.try_emplace(name);
    if (added) names_.push_back(name);
    column->second.resize(lines_, std::numeric_limits<double>::quiet_NaN());
    column->second.push_back(unbounded ? std::numeric_limits<double>::infinity() : value.as_double());
  }
  ++lines_;
}

double LogColumns::at(size_t line, const std::string& name) const {
  const auto column = columns_.find(name);
  if (column == columns_.end() || line >= column->second.size()) return std::numeric_limits<double>::quiet_NaN();
  return column->second[line];
}

bool LogColumns::has(size_t line, const std::string& name) const { return !std::isnan(at(line, name)); }

std::vector<Figure::Point> LogColumns::points(const std::string& x, const std::string& y) const {
  std::vector<Figure::Point> points;
  for (size_t line = 0; line < lines_; ++line)
    if (has(line, x) && has(line, y)) points.emplace_back(at(line, x), at(line, y));
  return points;
}

double number_of(const Json& value) {
  return value.is_number() ? value.as_double() : std::numeric_limits<double>::quiet_NaN();
}

std::string short_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{:.6g}", value);
}

}  // namespace tercet
