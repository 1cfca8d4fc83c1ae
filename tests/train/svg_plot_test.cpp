#include "train/svg_plot.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "train/page.h"

namespace tercet {
namespace {

using testing::plotted_series;
using testing::PlottedSeries;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Figure figure_of(std::vector<Figure::Point> points) {
  Figure figure{.title = "t", .x_label = "x", .y_label = "y"};
  figure.series.push_back({.label = "a", .points = std::move(points), .source = {"f", "x", "y"}});
  return figure;
}

}  // namespace

TEST_CASE("numbers that are not finite, and empty and one-point series, do not break a plot") {
  Figure figure = figure_of({{1, NAN}, {2, INFINITY}, {3, 4}, {-1e308, 1e308}});
  figure.series.push_back({.label = "b", .points = {}});
  for (const Figure::Style style : {Figure::Style::line, Figure::Style::points, Figure::Style::bars}) {
    figure.style = style;
    const std::string panel = figure_panel(figure);
    CHECK_FALSE(contains(panel, "nan"));
    CHECK_FALSE(contains(panel, "inf\""));
    const std::vector<PlottedSeries> series = plotted_series(panel);
    REQUIRE(series.size() == 2);
    CHECK(series[0].points == testing::Points{{3, 4}});
    CHECK(series[0].placed);
    CHECK(series[1].points.empty());
    CHECK(contains(panel, "a: 3 of 4 values are not finite"));
  }
  CHECK(figure_panel({.title = "t"}).empty());
}

TEST_CASE("flat, tiny, huge and negative values have axes and stand in their places") {
  for (const std::vector<Figure::Point>& points : std::vector<std::vector<Figure::Point>>{{{1, 0}, {2, 0}},
                                                                                          {{0, 1e-9}, {1, 3e-9}},
                                                                                          {{1e12, -5}, {2e12, 7e14}},
                                                                                          {{1, 0.3}, {1, 0.3}},
                                                                                          {{1, -2}, {2, -2}}}) {
    const std::vector<PlottedSeries> series = plotted_series(render_svg(figure_of(points)));
    REQUIRE(series.size() == 1);
    CHECK(series[0].points == points);
    CHECK(series[0].placed);
  }
}

TEST_CASE("values over two decades are drawn on a logarithmic axis where the figure allows it") {
  Figure figure = figure_of({{1, 50000}, {2, 300}, {3, 20}});
  CHECK(contains(render_svg(figure), "data-y-scale=\"linear\""));
  figure.wide_range = true;
  const std::string svg = render_svg(figure);
  CHECK(contains(svg, "data-y-scale=\"log10\""));
  CHECK(contains(svg, ">100</text>"));
  CHECK(plotted_series(svg).at(0).placed);
  figure.series[0].points.emplace_back(4, -1);
  CHECK(contains(render_svg(figure), "data-y-scale=\"linear\""));
}

TEST_CASE("long curves keep the lowest and the highest of each stretch and their ends, and say so") {
  std::vector<Figure::Point> points;
  for (int i = 0; i <= 5000; ++i) points.emplace_back(i, i == 2345 ? 1e6 : i == 777 ? -1e6 : i % 7);
  const std::string panel = figure_panel(figure_of(points));
  const testing::Points drawn = plotted_series(panel).at(0).points;
  CHECK(plotted_series(panel)[0].placed);
  CHECK(drawn.size() <= 1002);
  CHECK(drawn.front() == points.front());
  CHECK(drawn.back() == points.back());
  CHECK(std::ranges::find(drawn, points[2345]) != drawn.end());
  CHECK(std::ranges::find(drawn, points[777]) != drawn.end());
  for (const auto& point : drawn) CHECK(points[static_cast<size_t>(point.first)] == point);
  CHECK(contains(panel, "of 5001 points the lowest and the highest of each stretch are drawn"));
  CHECK(panel.size() < 60'000);
}

TEST_CASE("labels, names and titles are escaped") {
  Figure figure = figure_of({{1, 2}});
  figure.title = figure.x_label = figure.y_label = figure.series[0].label = "<script>\"&'";
  figure.series[0].source.run = "<b>";
  figure.series.push_back(figure.series[0]);
  const std::string panel = figure_panel(figure);
  CHECK(testing::is_self_contained(panel));
  CHECK(plotted_series(panel).at(0).label == "<script>\"&'");
  CHECK(plotted_series(panel)[0].run == "<b>");
}

TEST_CASE("a range that doubles cannot divide has few ticks or none") {
  CHECK(nice_ticks(1e18, std::nextafter(1e18, 2e18), 5).size() <= 11);
}

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(nice_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(nice_ticks(0.95, 3.1, 5) == std::vector<double>{1, 1.5, 2, 2.5, 3});
  CHECK(nice_ticks(0.9, 3.1, 7, 1) == std::vector<double>{1, 2, 3});
  for (const double low : {-1e9, -3.7, 0.0, 1e-7, 123.456})
    for (const double width : {1e-3, 0.3, 7.0, 1e6}) {
      const std::vector<double> ticks = nice_ticks(low, low + width, 5);
      CHECK(ticks.size() >= 2);
      CHECK(ticks.size() <= 8);
    }
}

}  // namespace tercet
