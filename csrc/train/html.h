// What the pages that tercet writes are made of: one HTML file, no script, nothing from a network, light and dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tercet {

struct HtmlTable {
  std::string title;
  std::vector<std::string> header;  // may be empty
  std::vector<std::vector<std::string>> rows;
};

// The text with &, <, >, " and ' as entities, and control characters other than line feed and tab as U+FFFD.
std::string escape_html(std::string_view text);

// A whole page around `body`, which is HTML; the title is text.
std::string html_page(const std::string& title, const std::string& body);

// A heading and the table; empty when it has no rows.
std::string html_table(const HtmlTable& table);

}  // namespace tercet
