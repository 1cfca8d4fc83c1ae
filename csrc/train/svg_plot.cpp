#include "train/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "train/html.h"

namespace tercet {
namespace {

constexpr double kWidth = 440, kHeight = 264;
constexpr double kTop = 12, kBottom = 46, kRight = 22;
constexpr double kCharacter = 7.2;        // width of a digit
constexpr double kLargest = 1e300;        // beyond it a range overflows
constexpr size_t kMostPoints = 1000;      // drawn of a series
constexpr size_t kMostSolidPoints = 200;  // above it points are translucent
constexpr size_t kMostMarkers = 80;       // above it a curve has no marks at its points

struct Range {
  double low = INFINITY, high = -INFINITY;

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never empty, with a margin of `share` on both sides.
  Range padded(double share) const {
    if (!(low <= high)) return {0, 1};
    const double width = high > low ? (high - low) * share : std::max(std::abs(low) * 0.1, 1e-12 + (low == 0 ? 1 : 0));
    return {low - width, high + width};
  }
};

struct Axis {
  Range range;  // of log10 when logarithmic
  bool logarithmic = false;
  std::vector<double> ticks;
  std::vector<std::string> labels;

  double share(double value) const {
    return ((logarithmic ? std::log10(value) : value) - range.low) / (range.high - range.low);
  }
};

// Maps data to the drawing's coordinates.
struct Frame {
  Axis x, y;
  double left_edge = 0;

  double right_edge() const { return kWidth - kRight; }
  double bottom_edge() const { return kHeight - kBottom; }
  double left(double value) const { return left_edge + x.share(value) * (right_edge() - left_edge); }
  double top(double value) const { return bottom_edge() - y.share(value) * (bottom_edge() - kTop); }
};

bool drawable(const Figure::Point& point) {
  return std::abs(point.first) <= kLargest && std::abs(point.second) <= kLargest;
}

// "1.5e-6" for "1.5e-06".
std::string short_exponent(std::string text) {
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const bool negative = text[e + 1] == '-';
  const size_t digits = std::min(text.find_first_not_of('0', e + 2), text.size());
  return text.substr(0, e + 1) + (negative ? "-" : "") + text.substr(digits);
}

// The ticks' numbers in one unit and with equally many decimals.
std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  double largest = 0;
  for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : largest;
  const auto [unit, suffix] = largest >= 1e9   ? std::pair{1e9, "G"}
                              : largest >= 1e6 ? std::pair{1e6, "M"}
                              : largest >= 1e4 ? std::pair{1e3, "k"}
                                               : std::pair{1.0, ""};
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    const int decimals = static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9));
    if (std::abs(tick) < step * 1e-6)
      labels.emplace_back("0");
    else if (largest >= 1e13 || decimals > 4)
      labels.push_back(short_exponent(fmt::format("{:.4g}", tick)));
    else
      labels.push_back(fmt::format("{:.{}f}{}", tick / unit, std::max(decimals, 0), suffix));
  }
  return labels;
}

size_t longest(const std::vector<std::string>& labels) {
  size_t length = 0;
  for (const std::string& label : labels) length = std::max(length, label.size());
  return length;
}

// Powers of ten, and their 2 and 5 fold where that leaves few.
Axis logarithmic_axis(const Range& values) {
  Axis axis{.range = Range{std::log10(values.low), std::log10(values.high)}.padded(0.05), .logarithmic = true};
  const double decades = axis.range.high - axis.range.low;
  const int stride = std::max(1, static_cast<int>(decades / 6));
  for (int power = static_cast<int>(std::floor(axis.range.low)); power <= axis.range.high; ++power)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, power);
      if (power % stride != 0 || (factor > 1 && decades > 3)) continue;
      if (std::log10(tick) < axis.range.low || std::log10(tick) > axis.range.high) continue;
      axis.ticks.push_back(tick);
      axis.labels.push_back(tick >= 1e4 || tick < 1e-3 ? short_exponent(fmt::format("{:.0e}", tick))
                                                       : fmt::format("{:g}", tick));
    }
  return axis;
}

Axis linear_axis(const Range& range, int ticks, double smallest_step) {
  Axis axis{.range = range, .ticks = nice_ticks(range.low, range.high, ticks, smallest_step)};
  axis.labels = tick_labels(axis.ticks);
  return axis;
}

bool whole_numbers(const Figure& figure, double Figure::Point::*coordinate) {
  for (const Figure::Series& series : figure.series)
    for (const Figure::Point& point : series.points)
      if (drawable(point) && point.*coordinate != std::floor(point.*coordinate)) return false;
  return true;
}

Frame frame_of(const Figure& figure) {
  const bool bars = figure.style == Figure::Style::bars;
  Range x, y;
  for (const Figure::Series& series : figure.series)
    for (const Figure::Point& point : series.points) {
      if (!drawable(point)) continue;
      x.include(point.first - (bars ? figure.bar_width / 2 : 0));
      x.include(point.first + (bars ? figure.bar_width / 2 : 0));
      y.include(point.second);
    }
  if (bars) y.include(0);
  Frame frame;
  if (figure.wide_range && y.low > 0 && y.high / y.low >= 100)
    frame.y = logarithmic_axis(y);
  else
    frame.y = linear_axis(bars ? Range{y.low, y.padded(0.06).high} : y.padded(0.06), 7,
                          whole_numbers(figure, &Figure::Point::second) ? 1 : 0);
  frame.left_edge = 12 + kCharacter * static_cast<double>(longest(frame.y.labels));
  const double smallest_step = whole_numbers(figure, &Figure::Point::first) ? 1 : 0;
  for (int ticks = 7; ticks >= 2; --ticks) {
    frame.x = linear_axis(x.padded(0.02), ticks, smallest_step);
    const double needed = kCharacter * static_cast<double>((longest(frame.x.labels) + 2) * frame.x.labels.size());
    if (needed < frame.right_edge() - frame.left_edge) break;
  }
  return frame;
}

std::string text(double x, double y, const char* anchor, const std::string& content) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)", x, y, anchor, escape_html(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* css) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)", x1, y1, x2, y2, css);
}

std::string axes(const Figure& figure, const Frame& frame) {
  std::string out;
  const double left = frame.left_edge, right = frame.right_edge(), bottom = frame.bottom_edge();
  for (size_t i = 0; i < frame.y.ticks.size(); ++i) {
    const double top = frame.top(frame.y.ticks[i]);
    out += line(left, top, right, top, "grid") + text(left - 6, top + 4, "end", frame.y.labels[i]);
  }
  for (size_t i = 0; i < frame.x.ticks.size(); ++i) {
    const double at = frame.left(frame.x.ticks[i]);
    out += line(at, bottom, at, bottom + 4, "axis") + text(at, bottom + 17, "middle", frame.x.labels[i]);
  }
  out += line(left, bottom, right, bottom, "axis") + line(left, kTop, left, bottom, "axis");
  return out + text((left + right) / 2, kHeight - 9, "middle", figure.x_label);
}

// The points that are drawn.
std::vector<Figure::Point> drawn(const std::vector<Figure::Point>& all) {
  std::vector<Figure::Point> points;
  std::ranges::copy_if(all, std::back_inserter(points), drawable);
  if (points.size() <= kMostPoints) return points;
  constexpr size_t stretches = kMostPoints / 2;
  std::vector<Figure::Point> kept = {points.front()};
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<int64_t>(i * points.size() / stretches);
    const auto end = points.begin() + static_cast<int64_t>((i + 1) * points.size() / stretches);
    const auto [low, high] = std::minmax_element(
        begin, end, [](const Figure::Point& a, const Figure::Point& b) { return a.second < b.second; });
    for (const auto extreme : {std::min(low, high), std::max(low, high)})
      if (*extreme != kept.back()) kept.push_back(*extreme);
  }
  if (points.back() != kept.back()) kept.push_back(points.back());
  return kept;
}

std::string joined(const std::vector<Figure::Point>& points, double Figure::Point::*coordinate) {
  std::string out;
  for (const Figure::Point& point : points) out += fmt::format("{}{}", out.empty() ? "" : " ", point.*coordinate);
  return out;
}

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? "" : fmt::format(" {}=\"{}\"", name, escape_html(value));
}

std::string marks(const Frame& frame, const std::vector<Figure::Point>& points) {
  std::string out;
  for (const auto& [x, y] : points)
    out += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="2.5" class="mark"><title>{:.6g}, {:.6g}</title></circle>)",
                       frame.left(x), frame.top(y), x, y);
  return out;
}

std::string curve(const Frame& frame, const Figure::Series& series, const std::vector<Figure::Point>& points) {
  std::string out;
  if (points.size() > 1) {
    out += fmt::format(R"(<polyline class="curve{}" points=")", series.dashed ? " dashed" : "");
    for (const auto& [x, y] : points) out += fmt::format("{:.1f},{:.1f} ", frame.left(x), frame.top(y));
    out += "\"/>";
  }
  return points.size() <= kMostMarkers ? out + marks(frame, points) : out;
}

std::string bars(const Frame& frame, double width, const std::vector<Figure::Point>& points) {
  std::string out;
  for (const auto& [x, y] : points) {
    const double left = frame.left(x - width / 2), right = frame.left(x + width / 2);
    const double top = frame.top(std::max(y, 0.0)), bottom = frame.top(std::min(y, 0.0));
    out += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="bar"><title>{:.6g}: {:.6g}</title></rect>)",
        left + 0.5, top, std::max(right - left - 1, 0.5), bottom - top, x, y);
  }
  return out;
}

size_t color_of(const Figure& figure, size_t series) {
  const int color = figure.series[series].color;
  return (color < 0 ? series : static_cast<size_t>(color)) % kFigureColors;
}

std::string series_group(const Figure& figure, const Frame& frame, size_t index) {
  const Figure::Series& series = figure.series[index];
  const std::vector<Figure::Point> points = drawn(series.points);
  std::string out =
      fmt::format("<g class=\"series c{}{}\"", color_of(figure, index),
                  figure.style == Figure::Style::points && points.size() > kMostSolidPoints ? " cloud" : "");
  out += attribute("data-run", series.source.run) + attribute("data-file", series.source.file);
  out += attribute("data-x-name", series.source.x) + attribute("data-y-name", series.source.y);
  out += attribute("data-label", series.label);
  out += fmt::format(" data-x=\"{}\" data-y=\"{}\">", joined(points, &Figure::Point::first),
                     joined(points, &Figure::Point::second));
  switch (figure.style) {
    case Figure::Style::line:
      out += curve(frame, series, points);
      break;
    case Figure::Style::points:
      out += marks(frame, points);
      break;
    case Figure::Style::bars:
      out += bars(frame, figure.bar_width, points);
      break;
  }
  return out + "</g>\n";
}

std::string legend(const Figure& figure) {
  if (figure.series.size() < 2) return "";
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < figure.series.size(); ++i) {
    const bool line = figure.style == Figure::Style::line;
    out += fmt::format("<li><span class=\"swatch c{}{}\"></span>{}</li>", color_of(figure, i),
                       !line                     ? " dot"
                       : figure.series[i].dashed ? " dashed"
                                                 : "",
                       escape_html(figure.series[i].label));
  }
  return out + "</ul>";
}

std::string notes(const Figure& figure) {
  std::string out;
  for (const Figure::Series& series : figure.series) {
    const auto finite = static_cast<size_t>(std::ranges::count_if(series.points, drawable));
    const std::string name = figure.series.size() > 1 ? series.label + ": " : "";
    if (finite > kMostPoints)
      out += fmt::format("<p class=\"soft\">{}of {} points the lowest and the highest of each stretch are drawn.</p>",
                         escape_html(name), finite);
    if (finite < series.points.size())
      out += fmt::format("<p class=\"soft\">{}{} of {} values are not finite and are not drawn.</p>", escape_html(name),
                         series.points.size() - finite, series.points.size());
  }
  return out;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count, double smallest_step) {
  const double rough = std::max((high - low) / count, smallest_step);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= 2 * count && (first + i) * step <= high + step * 1e-9; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

std::string render_svg(const Figure& figure) {
  const Frame frame = frame_of(figure);
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-x-range=\"{} {}\" data-y-range=\"{} {}\" "
      "data-x-pixels=\"{} {}\" data-y-pixels=\"{} {}\" data-y-scale=\"{}\">",
      kWidth, kHeight, escape_html(figure.title), frame.x.range.low, frame.x.range.high, frame.y.range.low,
      frame.y.range.high, frame.left_edge, frame.right_edge(), frame.bottom_edge(), kTop,
      frame.y.logarithmic ? "log10" : "linear");
  out += axes(figure, frame) + "\n";
  for (size_t i = 0; i < figure.series.size(); ++i) out += series_group(figure, frame, i);
  return out + "</svg>\n";
}

std::string figure_panel(const Figure& figure) {
  if (figure.series.empty()) return "";
  const bool empty = std::ranges::all_of(
      figure.series, [](const Figure::Series& series) { return std::ranges::none_of(series.points, drawable); });
  return fmt::format(
      "<figure class=\"panel\"><figcaption><strong>{}</strong> <span class=\"soft\">{}</span>{}</figcaption>\n{}{}"
      "</figure>\n",
      escape_html(figure.title), escape_html(figure.y_label), legend(figure), empty ? "" : render_svg(figure),
      notes(figure));
}

std::string figure_grid(const std::vector<Figure>& figures) {
  std::string panels;
  for (const Figure& figure : figures) panels += figure_panel(figure);
  return panels.empty() ? "" : "<section class=\"plots\">\n" + panels + "</section>\n";
}

}  // namespace tercet
