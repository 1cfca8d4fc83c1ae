// A comparison as a page and as text.
#include <fmt/format.h>

#include <algorithm>

#include "train/comparison.h"

namespace tercet {
namespace {

std::string run_list(const Comparison& comparison) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < comparison.runs.size(); ++i)
    out += fmt::format("<li><span class=\"swatch c{}\"></span>{} <span class=\"soft\">{}</span></li>", i,
                       escape_html(comparison.runs[i].label), escape_html(comparison.runs[i].path));
  return out + "</ul>\n";
}

// Columns that a terminal shows for the text: one for each code point.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string table_text(const HtmlTable& table) {
  std::vector<std::vector<std::string>> rows = {table.header};
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths(table.header.size(), 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::string out = "\n" + table.title + "\n";
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += " " + row[i] + std::string(widths[i] - width_of(row[i]) + 1, ' ');
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

std::string comparison_page(const Comparison& comparison) {
  const std::string title = fmt::format("{} runs of {}", comparison.runs.size(), comparison.step);
  std::string body = fmt::format("<h1>{}</h1>\n{}", escape_html(title), run_list(comparison));
  for (const std::string& note : comparison.notes) body += fmt::format("<p class=\"note\">{}</p>\n", escape_html(note));
  for (const HtmlTable& table : comparison.tables) body += html_table(table);
  for (const Comparison::Section& section : comparison.sections)
    if (const std::string plots = figure_grid(section.figures); !plots.empty())
      body += fmt::format("<h2>{}</h2>\n{}", escape_html(section.title), plots);
  return html_page(title, body);
}

std::string comparison_text(const Comparison& comparison) {
  std::string out = fmt::format("{} runs of {}\n", comparison.runs.size(), comparison.step);
  for (const Comparison::Run& run : comparison.runs)
    if (run.label != run.path) out += fmt::format("  {}: {}\n", run.label, run.path);
  for (const std::string& note : comparison.notes) out += "\n" + note + "\n";
  for (const HtmlTable& table : comparison.tables) out += table_text(table);
  return out;
}

}  // namespace tercet
