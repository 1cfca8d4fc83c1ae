// docs/walkthrough.md names only files, functions and classes that exist, in files that have them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "model/model_file.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kFolders = {"csrc/",    "kernels/", "tests/", "examples/",
                                                      "weights/", "docs/",    "bench/", "cmake/"};
constexpr std::array<std::string_view, 4> kSections = {"## What all three steps share", "## Step 1: sft",
                                                       "## Step 2: reward", "## Step 3: ppo"};

// What a document says in backticks about the repository's files.
struct References {
  std::vector<std::string> faults;
  int paths = 0;
  std::map<std::string, int> names;  // by section, the line that begins with "## "

  int name_count() const {
    int sum = 0;
    for (const auto& [section, count] : names) sum += count;
    return sum;
  }
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where `name` occurs as a whole word at or after `from`.
size_t find_word(const std::string& text, const std::string& name, size_t from = 0) {
  for (size_t at = from; (at = text.find(name, at)) != std::string::npos; ++at) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return at;
  }
  return std::string::npos;
}

std::string without_comments(const std::string& source) {
  static const std::regex comment("//[^\n]*");
  return std::regex_replace(source, comment, "");
}

// What stands between the brace at `open` and its partner, but not in braces of its own.
std::string outer_level(const std::string& source, size_t open) {
  std::string level;
  int depth = 0;
  for (size_t at = open; at < source.size(); ++at) {
    if (source[at] == '}' && --depth == 0) break;
    if (depth == 1) level += source[at];
    if (source[at] == '{') ++depth;
  }
  return level;
}

// Whether the source holds "Class::member(" at the level of a definition: in a line that is not indented.
bool defines_outside(const std::string& source, const std::string& qualified) {
  for (size_t at = 0; (at = find_word(source, qualified, at)) != std::string::npos; ++at) {
    const size_t line = source.rfind('\n', at) + 1;
    if (source.substr(at + qualified.size(), 1) == "(" && source[line] != ' ') return true;
  }
  return false;
}

// Whether a class or struct in the source declares the member.
bool declares_inside(const std::string& source, const std::string& class_name, const std::string& member) {
  const std::regex head("\\b(class|struct) " + class_name + "\\b[^;{()]*\\{");
  const std::regex declaration("\\b" + member + "( *[({;=,\\[]|$)");
  for (auto match = std::sregex_iterator(source.begin(), source.end(), head); match != std::sregex_iterator();
       ++match) {
    const auto open = static_cast<size_t>(match->position() + match->length()) - 1;
    if (std::regex_search(outer_level(source, open), declaration)) return true;
  }
  return false;
}

// `name` is a word, or Class::member.
bool has_name(const std::string& source, const std::string& name) {
  const size_t colons = name.rfind("::");
  if (colons == std::string::npos) return find_word(source, name) != std::string::npos;
  return defines_outside(source, name) || declares_inside(source, name.substr(0, colons), name.substr(colons + 2));
}

// Checks one text in backticks that begins with a folder of the repository: PATH, or PATH: NAME, NAME, ...
void check_reference(const std::string& text, const std::string& section, References& references) {
  static const std::regex grammar(R"(([\w./-]+)(: (\w+(::\w+)*(, \w+(::\w+)*)*))?)");
  static const std::regex one_name(R"(\w+(::\w+)*)");
  std::smatch parts;
  if (!std::regex_match(text, parts, grammar)) return references.faults.push_back(text + ": is not PATH: NAME, NAME");
  const std::string path = TERCET_SOURCE_DIR "/" + parts[1].str();
  const std::string names = parts[3];
  ++references.paths;
  if (!fs::exists(path)) return references.faults.push_back(parts[1].str() + ": no such file");
  if (names.empty()) return;
  if (!fs::is_regular_file(path)) return references.faults.push_back(text + ": names in a folder");
  const std::string source = without_comments(read_file(path));
  for (auto name = std::sregex_iterator(names.begin(), names.end(), one_name); name != std::sregex_iterator(); ++name) {
    ++references.names[section];
    if (!has_name(source, name->str())) references.faults.push_back(parts[1].str() + ": no " + name->str());
  }
}

// All references of a document; its code blocks (fenced, or indented by four spaces) are left out.
References references_of(const std::string& document) {
  static const std::regex quoted("`([^`]*)`");
  References references;
  std::string section;
  bool fenced = false;
  for (size_t begin = 0, end; begin < document.size(); begin = end + 1) {
    end = std::min(document.find('\n', begin), document.size());
    const std::string line = document.substr(begin, end - begin);
    if (line.starts_with("## ")) section = line;
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced || line.starts_with("```") || line.starts_with("    ")) continue;
    if (std::ranges::count(line, '`') % 2 != 0) references.faults.push_back(line + ": an open backtick");
    for (auto match = std::sregex_iterator(line.begin(), line.end(), quoted); match != std::sregex_iterator(); ++match)
      if (const std::string text = (*match)[1];
          std::ranges::any_of(kFolders, [&](std::string_view folder) { return text.starts_with(folder); }))
        check_reference(text, section, references);
  }
  return references;
}

TEST_CASE("the walkthrough names files, functions and classes that exist") {
  const References references = references_of(read_file(TERCET_SOURCE_DIR "/docs/walkthrough.md"));
  for (const std::string& fault : references.faults) FAIL_CHECK("docs/walkthrough.md: " << fault);
  CHECK(references.name_count() >= 100);
  for (const std::string_view section : kSections) {
    CAPTURE(section);
    const auto found = references.names.find(std::string(section));
    REQUIRE(found != references.names.end());
    CHECK(found->second >= 15);
  }
}

TEST_CASE("the walkthrough follows one dialogue: its lines stand under 120 columns and its commands name its files") {
  const std::string document = read_file(TERCET_SOURCE_DIR "/docs/walkthrough.md");
  size_t longest = 0;
  for (size_t begin = 0, end; begin < document.size(); begin = end + 1) {
    end = std::min(document.find('\n', begin), document.size());
    longest = std::max(longest, end - begin);
  }
  CHECK(longest <= 120);
  for (const char* command : {"tercet tokenize ", "tercet sft ", "tercet reward ", "tercet ppo ", "tercet score "})
    CHECK_MESSAGE(document.find(command) != std::string::npos, command);
}

TEST_CASE("the walkthrough shows the ids that the demo's tokenizer gives") {
  const std::string document = read_file(TERCET_SOURCE_DIR "/docs/walkthrough.md");
  const std::string model = TERCET_SOURCE_DIR "/weights/demo.h5";
  const Tokenizer tokenizer = read_model_info(model).tokenizer(model);
  for (const char* text : {"\n\nHuman: Tom likes tea. Ana likes milk. What does Tom like?\n\nAssistant:",
                           " Of course! Tom likes tea.", " Tom likes soup.", " As the text says. Tom likes tea."}) {
    const std::string ids = fmt::format(" {} ", fmt::join(tokenizer.encode(text), " "));
    CHECK_MESSAGE(document.find(ids) != std::string::npos, text << ids);
  }
}

// What the tests above rest on.
TEST_CASE("wrong paths and wrong names in a document are found") {
  const auto faults = [](const std::string& text) { return references_of(text).faults; };
  CHECK(faults("`csrc/data/records.cpp: parse_record, Record::split_key` in `csrc/data`").empty());
  CHECK(faults("`csrc/data/records.h: Record::completions, LineReader::next` and `kernels/linear.h`").empty());
  CHECK(faults("`parse_records` is of no file, `csrc/data` is a folder").empty());
  CHECK(faults("```\n`csrc/no_such.cpp`\n```\n    `csrc/no_such.cpp`\n").empty());

  using Faults = std::vector<std::string>;
  CHECK(faults("`csrc/data/record.cpp`") == Faults{"csrc/data/record.cpp: no such file"});
  CHECK(faults("`csrc/data/records.cpp: parse_records`") == Faults{"csrc/data/records.cpp: no parse_records"});
  CHECK(faults("`csrc/data/records.cpp: parse_recor`") == Faults{"csrc/data/records.cpp: no parse_recor"});
  CHECK(faults("`csrc/data/records.cpp: Record::split`") == Faults{"csrc/data/records.cpp: no Record::split"});
  CHECK(faults("`csrc/data/records.cpp: parse_record, nothing`") == Faults{"csrc/data/records.cpp: no nothing"});
  CHECK(faults("`csrc/data: parse_record`") == Faults{"csrc/data: parse_record: names in a folder"});
  CHECK(faults("`csrc/data/records.cpp parse_record`").size() == 1);
  CHECK(faults("an open `csrc/data").size() == 1);
}

// A call, a comment, a nested class's member and another class's member do not make a member.
TEST_CASE("members of classes are told from uses of their names") {
  const std::string source = without_comments(
      "struct A {\n  int kept = 0;  // A has lost\n  struct Inner {\n    int deep;\n  };\n  void run() { call(); "
      "}\n};\n"
      "int A::count() const {\n  return B::total();\n}\n");
  for (const char* name : {"A", "call", "A::kept", "A::Inner", "A::run", "A::count"}) CHECK(has_name(source, name));
  for (const char* name : {"lost", "A::lost", "A::deep", "A::call", "B::total", "A::coun", "B::kept"})
    CHECK_FALSE_MESSAGE(has_name(source, name), name);
}

}  // namespace
}  // namespace tercet
