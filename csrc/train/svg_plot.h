// Plots: a Figure drawn as SVG, with the numbers that are drawn beside each curve.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tercet {

struct Figure {
  enum class Style { line, points, bars };
  using Point = std::pair<double, double>;

  struct Series {
    // The fields of a run's file that the points are made of.
    struct Source {
      std::string file, x, y;
      std::string run = {};  // where several are compared
    };

    std::string label;
    std::vector<Point> points;  // of bars: the middle of the bar and its height
    Source source = {};
    int color = -1;       // from 0 to kFigureColors - 1; below 0: the place of the series
    bool dashed = false;  // of lines
  };

  std::string title, x_label, y_label;
  Style style = Style::line;
  std::vector<Series> series;
  double bar_width = 1;     // of bars, in units of x
  bool wide_range = false;  // whether a logarithmic y axis is used when all y are positive and span two decades
};

constexpr int kFigureColors = 8;

// An <svg> element with axes, ticks and the label of x. Points that are not finite are left out. Of more than 1,000
// points of a series the lowest and the highest of each of 500 stretches are drawn. Each series is a
// <g class="series"> with what is drawn as attributes: data-file, data-x-name, data-y-name, data-run, data-label, and
// data-x and data-y, numbers with blanks between that read back to the same doubles. The element says by data-x-range,
// data-y-range, data-x-pixels, data-y-pixels and data-y-scale how numbers become places.
std::string render_svg(const Figure& figure);

// A <figure> with title, label of y, legend, the plot, and notes about what is not drawn; empty without series.
std::string figure_panel(const Figure& figure);

// The figures' panels side by side; empty when there are none.
std::string figure_grid(const std::vector<Figure>& figures);

// Places for ticks: multiples of 1, 2 or 5 times a power of ten, about `count` of them within [low, high], at least
// `smallest_step` apart.
std::vector<double> nice_ticks(double low, double high, int count, double smallest_step = 0);

}  // namespace tercet
