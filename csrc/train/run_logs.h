// The logs of a run, read back for its report and for comparisons.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/svg_plot.h"

namespace tercet {

// Calls visit(line) for each line of a log (metrics.jsonl, timings.jsonl, samples.jsonl) of the run in `folder`; for
// none when the run has not written it. A last line without its line feed is left out: a run that goes on is writing
// it. Throws Error(Fault::input) that names file and line when a line is not JSON.
void for_each_log_line(const std::string& folder, const std::string& log,
                       const std::function<void(const Json&)>& visit);

// The numbers in the lines of a log, by name.
class LogColumns {
 public:
  static LogColumns read(const std::string& folder, const std::string& log);

  // Numbers of the line, and the texts "nan", "inf" and "-inf" that stand for such; other members are left out.
  void add(const Json& line);

  size_t lines() const { return lines_; }
  // In the order in which they appear first.
  const std::vector<std::string>& names() const { return names_; }
  // Whether the line has the name, and its value then: infinity for a value that is not finite.
  bool has(size_t line, const std::string& name) const;
  double at(size_t line, const std::string& name) const;

  // (x, y) of the lines that have both.
  std::vector<Figure::Point> points(const std::string& x, const std::string& y) const;

 private:
  size_t lines_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> columns_;  // NaN where a line lacks the name
};

// The value of a line's member: NaN for the texts that stand for numbers that are not finite, and for all others.
double number_of(const Json& value);

// As a cell of a table: whole numbers whole, others with 6 digits.
std::string short_number(double value);

}  // namespace tercet
