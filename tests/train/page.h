// Reading the pages that tercet writes: their elements, and the series that are plotted.
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "train/run_logs.h"

namespace tercet::testing {

using Points = std::vector<std::pair<double, double>>;

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;  // unescaped

  std::string at(const std::string& attribute) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? "" : found->second;
  }
};

inline std::string unescaped(std::string text) {
  for (const auto& [entity, plain] : {std::pair<std::string, std::string>{"&lt;", "<"},
                                      {"&gt;", ">"},
                                      {"&quot;", "\""},
                                      {"&#39;", "'"},
                                      {"&amp;", "&"}})
    for (size_t at = text.find(entity); at != std::string::npos; at = text.find(entity, at + plain.size()))
      text.replace(at, entity.size(), plain);
  return text;
}

inline std::vector<double> numbers(const std::string& text) {
  std::vector<double> values;
  std::istringstream words(text);
  for (std::string word; words >> word;) values.push_back(std::strtod(word.c_str(), nullptr));
  return values;
}

// The elements of a page in the order in which they open; nothing when a tag is malformed, an attribute is without
// quotes or given twice, an element is not closed in order, or a bare '&' or '>' stands in a text. The contents of
// <style> are skipped.
inline std::optional<std::vector<Element>> parse_page(const std::string& page) {
  std::vector<Element> elements;
  std::vector<std::string> open;
  size_t at = page.starts_with("<!doctype html>") ? page.find('>') + 1 : 0;
  while (at < page.size()) {
    if (page[at] == '>') return {};
    if (page[at] == '&') {
      const size_t end = page.find(';', at);
      if (end == std::string::npos || end - at > 6) return {};
    }
    if (page[at] != '<') {
      ++at;
      continue;
    }
    const bool closes = page[++at] == '/';
    if (closes) ++at;
    const size_t end = page.find_first_of(" />", at);
    Element element{page.substr(at, end - at), {}};
    if (element.name.empty() ||
        element.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos)
      return {};
    for (at = end; page[at] == ' ';) {
      const size_t equals = page.find('=', at);
      if (equals == std::string::npos || page[equals + 1] != '"') return {};
      const size_t quote = page.find('"', equals + 2);
      const std::string value = page.substr(equals + 2, quote - equals - 2);
      if (value.find('<') != std::string::npos) return {};
      if (!element.attributes.emplace(page.substr(at + 1, equals - at - 1), unescaped(value)).second) return {};
      at = quote + 1;
    }
    const bool alone = page[at] == '/' || element.name == "meta";
    if (page[at] == '/') ++at;
    if (page[at++] != '>') return {};
    if (closes) {
      if (open.empty() || open.back() != element.name) return {};
      open.pop_back();
      continue;
    }
    if (!alone) open.push_back(element.name);
    elements.push_back(element);
    if (element.name == "style") at = page.find("</style>", at);
  }
  if (!open.empty()) return {};
  return elements;
}

// Whether the page loads or runs nothing: no script, no address, no attribute or style that names a resource.
inline bool is_self_contained(const std::string& page) {
  const auto elements = parse_page(page);
  if (!elements) return false;
  for (const Element& element : *elements) {
    for (const char* name : {"script", "link", "iframe", "img", "object", "embed", "base", "image", "use", "a"})
      if (element.name == name) return false;
    for (const auto& [attribute, value] : element.attributes)
      if (attribute == "src" || attribute == "href" || attribute == "style" || attribute.starts_with("on"))
        return false;
    if (element.attributes.contains("http-equiv")) return false;
  }
  const size_t begin = page.find("<style>"), end = page.find("</style>");
  const std::string style = begin == std::string::npos ? "" : page.substr(begin, end - begin);
  return style.find("url(") == std::string::npos && style.find("@import") == std::string::npos &&
         style.find("@font-face") == std::string::npos;
}

// A plotted series with the places at which it is drawn.
struct PlottedSeries {
  std::string figure, run, file, x_name, y_name, label;
  Points points;
  bool placed = true;  // whether each point that is drawn lies where the axes put its numbers
};

// What a number becomes on the drawing.
inline double place(double value, const std::vector<double>& range, const std::vector<double>& pixels) {
  return pixels[0] + (value - range[0]) / (range[1] - range[0]) * (pixels[1] - pixels[0]);
}

inline std::vector<PlottedSeries> plotted_series(const std::string& page) {
  std::vector<PlottedSeries> all;
  Element svg;
  const auto check = [&](double left, double top, size_t index) {
    PlottedSeries& series = all.back();
    if (index >= series.points.size()) return void(series.placed = false);
    const double y = series.points[index].second;
    const double x_place =
        place(series.points[index].first, numbers(svg.at("data-x-range")), numbers(svg.at("data-x-pixels")));
    const double y_place = place(svg.at("data-y-scale") == "log10" ? std::log10(y) : y, numbers(svg.at("data-y-range")),
                                 numbers(svg.at("data-y-pixels")));
    if (!(std::abs(x_place - left) < 0.06 && std::abs(y_place - top) < 0.06)) series.placed = false;
  };
  size_t circles = 0;
  const std::vector<Element> elements = parse_page(page).value();
  for (const Element& element : elements) {
    if (element.name == "svg") svg = element;
    if (element.name == "g" && element.at("class").starts_with("series")) {
      const std::vector<double> x = numbers(element.at("data-x")), y = numbers(element.at("data-y"));
      all.push_back({svg.at("aria-label"),
                     element.at("data-run"),
                     element.at("data-file"),
                     element.at("data-x-name"),
                     element.at("data-y-name"),
                     element.at("data-label"),
                     {},
                     x.size() == y.size()});
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) all.back().points.emplace_back(x[i], y[i]);
      circles = 0;
    }
    if (element.name == "circle")
      check(std::atof(element.at("cx").c_str()), std::atof(element.at("cy").c_str()), circles++);
    if (element.name != "polyline") continue;
    std::string text = element.at("points");
    for (char& c : text)
      if (c == ',') c = ' ';
    const std::vector<double> places = numbers(text);
    if (places.size() != 2 * all.back().points.size()) all.back().placed = false;
    for (size_t i = 0; i + 1 < places.size(); i += 2) check(places[i], places[i + 1], i / 2);
  }
  return all;
}

// What a series must show: the lines of the log in `folder` that have both names and finite values.
inline Points logged_points(const std::string& folder, const PlottedSeries& series) {
  Points points;
  double tokens = 0;
  for_each_log_line(folder, series.file, [&](const Json& line) {
    const auto value = [&](const std::string& name) {
      const Json* found = line.find(name);
      if (found == nullptr) return name == "tokens_seen" && line.find("step") != nullptr ? tokens : NAN;
      return found->is_number() ? found->as_double() : NAN;
    };
    if (const Json* seen = line.find("tokens_seen")) tokens = seen->as_double();
    const double x = value(series.x_name), y = value(series.y_name);
    if (std::isfinite(x) && std::isfinite(y)) points.emplace_back(x, y);
  });
  return points;
}

}  // namespace tercet::testing
