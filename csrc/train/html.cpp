#include "train/html.h"

#include <fmt/format.h>

namespace tercet {
namespace {

constexpr const char* kStyle = R"(
:root { --ink: #1d2430; --soft: #56606f; --line: #d9dee6; --paper: #ffffff; --panel: #f6f8fa;
  --c0: #2563c9; --c1: #c2560f; --c2: #1d7d52; --c3: #9333a8; --c4: #85690a; --c5: #c02f4b; --c6: #0b7a8c;
  --c7: #5a5f6b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3adbc; --line: #343c48; --paper: #14181e;
  --panel: #1c222b; --c0: #6ea8ff; --c1: #ff9f5a; --c2: #56c596; --c3: #dd86e4; --c4: #e2c14d; --c5: #ff7f96;
  --c6: #4fd0e0; --c7: #b9c1cd; } }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.4rem clamp(.6rem, 2.5vw, 2rem) 4rem; max-width: 1600px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; } h3 { font-size: .95rem; margin: .2rem 0 .4rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; } .soft { color: var(--soft); }
.note { border-left: 3px solid var(--c1); padding: .3rem .8rem; background: var(--panel); }
.plots { display: grid; gap: .9rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); }
.panel { margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem; }
.panel > p { font-size: .85rem; } figcaption { margin-bottom: .3rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1rem; margin: 0; padding: 0; list-style: none; font-size: .85rem; }
.legend li { overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 1.4em; border-top: 3px solid var(--c); vertical-align: middle;
  margin-right: .4em; } .swatch.dashed { border-top-style: dotted; }
.swatch.dot { width: .7em; height: .7em; border: 0; border-radius: 50%; background: var(--c); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12.5px system-ui, sans-serif; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.curve { fill: none; stroke: var(--c); stroke-width: 1.7; stroke-linejoin: round; }
.curve.dashed { stroke-dasharray: 2 4; stroke-linecap: round; stroke-width: 2.2; }
.mark { fill: var(--c); fill-opacity: .8; } .cloud .mark { fill-opacity: .45; } .bar { fill: var(--c); fill-opacity: .8; }
table { border-collapse: collapse; font-size: .88rem; } .scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; min-width: 4.5em; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { min-width: 8.5em; }
th { color: var(--soft); font-weight: 600; }
.number { white-space: nowrap; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }
pre.wide { white-space: pre; }
.sample { margin-bottom: 1rem; } .answers { display: grid; gap: .8rem; margin-top: .6rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
summary { cursor: pointer; color: var(--soft); margin-bottom: .6rem; }
)";

// Numbers are not broken over lines.
bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("+-.0123456789e") == std::string::npos;
}

std::string cells(const std::vector<std::string>& row, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : row)
    out += fmt::format("<{0}{1}>{2}</{0}>", tag, is_number(cell) ? " class=\"number\"" : "", escape_html(cell));
  return out + "</tr>\n";
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

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      escape_html(title), kStyle, body);
}

std::string html_table(const HtmlTable& table) {
  if (table.rows.empty()) return "";
  std::string out = fmt::format("<h2>{}</h2>\n<div class=\"scroll\"><table>\n", escape_html(table.title));
  if (!table.header.empty()) out += cells(table.header, "th");
  for (const auto& row : table.rows) out += cells(row, "td");
  return out + "</table></div>\n";
}

}  // namespace tercet
