#include "train/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tercet {
namespace {

constexpr double kWidth = 560, kHeight = 320;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 48;
constexpr size_t kMostPoints = 2000;
constexpr size_t kMostMarkers = 120;  // above it a curve has no marks at its points
constexpr size_t kColors = 6;

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

// Maps data to the drawing's coordinates.
struct Frame {
  Range x, y;

  double left(double value) const { return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double top(double value) const {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

bool finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

Frame frame_of(const Figure& figure) {
  const bool bars = figure.style == Figure::Style::bars;
  Range x, y;
  for (const Figure::Series& series : figure.series)
    for (const auto& point : series.points) {
      if (!finite(point)) continue;
      x.include(point.first - (bars ? figure.bar_width / 2 : 0));
      x.include(point.first + (bars ? figure.bar_width / 2 : 0));
      y.include(point.second);
    }
  if (!bars) return {x.padded(0.02), y.padded(0.06)};
  y.include(0);
  return {x.padded(0.02), {y.low, y.padded(0.06).high}};
}

std::string tick_text(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  const double magnitude = std::abs(value);
  if (magnitude >= 1e6 || step < 1e-4) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

std::string text(double x, double y, const char* anchor, const char* css, const std::string& content) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y, anchor, css,
                     escape_html(content));
}

std::string axes(const Figure& figure, const Frame& frame) {
  std::string out;
  const double bottom = kHeight - kBottom;
  const auto grid = [&](double x1, double y1, double x2, double y2, const char* css) {
    out += fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)", x1, y1, x2, y2, css);
  };
  const std::vector<double> y_ticks = nice_ticks(frame.y.low, frame.y.high, 5);
  for (const double tick : y_ticks) {
    grid(kLeft, frame.top(tick), kWidth - kRight, frame.top(tick), "grid");
    out += text(kLeft - 6, frame.top(tick) + 4, "end", "tick",
                tick_text(tick, y_ticks.size() > 1 ? y_ticks[1] - y_ticks[0] : 1));
  }
  const std::vector<double> x_ticks = nice_ticks(frame.x.low, frame.x.high, 7);
  for (const double tick : x_ticks) {
    grid(frame.left(tick), bottom, frame.left(tick), bottom + 4, "axis");
    out += text(frame.left(tick), bottom + 17, "middle", "tick",
                tick_text(tick, x_ticks.size() > 1 ? x_ticks[1] - x_ticks[0] : 1));
  }
  grid(kLeft, bottom, kWidth - kRight, bottom, "axis");
  grid(kLeft, kTop, kLeft, bottom, "axis");
  out += text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", "label", figure.x_label);
  out += fmt::format(
      R"~(<text transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle" class="label">{}</text>)~",
      (kTop + bottom) / 2, escape_html(figure.y_label));
  out += text(kLeft, 18, "start", "title", figure.title);
  return out;
}

// Every stride-th point, the last among them.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> kept;
  std::ranges::copy_if(points, std::back_inserter(kept), finite);
  const size_t stride = (kept.size() + kMostPoints - 1) / kMostPoints;
  if (stride <= 1) return kept;
  std::vector<std::pair<double, double>> every;
  for (size_t i = (kept.size() - 1) % stride; i < kept.size(); i += stride) every.push_back(kept[i]);
  return every;
}

std::string marker(const Frame& frame, const std::pair<double, double>& point, size_t color, const std::string& label) {
  return fmt::format(
      R"(<circle cx="{:.1f}" cy="{:.1f}" r="2.6" class="mark c{}"><title>{}: {:.6g}, {:.6g}</title></circle>)",
      frame.left(point.first), frame.top(point.second), color, escape_html(label), point.first, point.second);
}

std::string curve(const Frame& frame, const Figure::Series& series, size_t color, bool joined) {
  const auto points = thinned(series.points);
  std::string out;
  if (joined && points.size() > 1) {
    out += fmt::format(R"(<polyline class="curve c{}" points=")", color);
    for (const auto& [x, y] : points) out += fmt::format("{:.1f},{:.1f} ", frame.left(x), frame.top(y));
    out += "\"/>";
  }
  if (!joined || points.size() <= kMostMarkers)
    for (const auto& point : points) out += marker(frame, point, color, series.label);
  return out;
}

std::string bars(const Frame& frame, const Figure& figure, const Figure::Series& series, size_t color) {
  std::string out;
  for (const auto& [x, y] : series.points) {
    if (!finite({x, y})) continue;
    const double left = frame.left(x - figure.bar_width / 2), right = frame.left(x + figure.bar_width / 2);
    const double top = frame.top(std::max(y, 0.0)), bottom = frame.top(std::min(y, 0.0));
    out += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="bar c{}"><title>{:.6g}: {:.6g}</title></rect>)",
        left + 0.5, top, std::max(right - left - 1, 0.5), bottom - top, color, x, y);
  }
  return out;
}

std::string legend(const Figure& figure) {
  if (figure.series.size() < 2) return "";
  std::string out;
  double right = kWidth - kRight;
  for (size_t i = figure.series.size(); i-- > 0;) {
    const std::string& label = figure.series[i].label;
    right -= 6.4 * static_cast<double>(label.size());
    out += text(right, 18, "start", "tick", label);
    out += fmt::format(R"(<circle cx="{:.1f}" cy="14" r="4" class="mark c{}"/>)", right - 9, i % kColors);
    right -= 24;
  }
  return out;
}

}  // namespace

std::string escape_html(std::string_view source) {
  std::string out;
  for (const char c : source) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
          out += "\xEF\xBF\xBD";
        else
          out += c;
    }
  }
  return out;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
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
  std::string out = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", kWidth, kHeight,
                                escape_html(figure.title));
  out += axes(figure, frame);
  for (size_t i = 0; i < figure.series.size(); ++i)
    out += figure.style == Figure::Style::bars
               ? bars(frame, figure, figure.series[i], i % kColors)
               : curve(frame, figure.series[i], i % kColors, figure.style == Figure::Style::line);
  return out + legend(figure) + "</svg>\n";
}

}  // namespace tercet
