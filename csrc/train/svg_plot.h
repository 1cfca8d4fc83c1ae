// A Figure as SVG.
#pragma once

#include <string>
#include <string_view>

#include "train/report.h"

namespace tercet {

// The text with &, <, >, " and ' as entities, and control characters other than line feed and tab as U+FFFD.
std::string escape_html(std::string_view text);

// An <svg> element with axes, ticks, labels, legend and title. Points that are not finite are left out.
std::string render_svg(const Figure& figure);

// Places for ticks: multiples of 1, 2 or 5 times a power of ten, about `count` of them within [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace tercet
