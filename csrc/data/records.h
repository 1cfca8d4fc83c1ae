// Reading records: lines of .jsonl and .jsonl.gz files, and the forms of record that tercet knows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/dialogue.h"

namespace tercet {

// The lines of a text file, or of a gzip file when the name ends in ".gz"; one line is held at a time.
class LineReader {
 public:
  // Throws Error(Fault::input) when the file cannot be opened, and when name and content disagree about gzip.
  explicit LineReader(const std::string& path);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its line feed; false at the end. Throws Error(Fault::input) that names the file and the first
  // line that could not be had when gzip data is truncated or damaged or the line is longer than 64 MiB, and
  // Error(Fault::run) when reading fails.
  bool next(std::string& line);

  // The number of the line that next() returned last, from 1.
  int64_t line_number() const { return line_number_; }
  const std::string& path() const { return path_; }
  // "path:line".
  std::string where() const;

 private:
  struct Source;
  bool fill();

  std::string path_;
  int64_t line_number_ = 0;
  std::unique_ptr<Source> source_;
};

// Calls visit(value, "path:line") for every line of a JSON Lines file, in order. Throws Error(Fault::input) that names
// file and line when a line is not JSON.
void for_each_json_line(const std::string& path, const std::function<void(const Json&, const std::string&)>& visit);

// Names of record fields in the files: the field that tercet calls `first` is called `second` there.
using FieldNames = std::map<std::string, std::string>;

// Parses "prompt=question,response=answer". The left names are prompt, chosen, rejected, response, messages, text and
// ids. Throws Error(Fault::input) that names --fields otherwise.
FieldNames parse_field_names(std::string_view fields);

// A prompt and an answer to it. The answer is in the form of answer_text(), so that it may be empty.
struct Completion {
  std::string prompt;
  std::string answer;
};

// One record, its texts in the form in which they are encoded.
struct Record {
  enum class Form {
    pair,      // {"prompt","chosen","rejected"} or {"chosen","rejected"}, whole dialogues
    response,  // {"prompt","response"}
    prompt,    // {"prompt"}
    messages,  // {"messages":[{"role","content"}...]}
    text,      // {"text"}
    ids,       // {"ids"}
  };

  Form form = Form::text;
  // pair: chosen, then rejected; response: one; messages: one per assistant turn, oldest first; else none.
  std::vector<Completion> completions;
  // The prompt that has no answer yet: of form prompt, and of messages that end with a user turn.
  std::optional<std::string> open_prompt;
  std::string text;          // form text, as it is
  std::vector<int32_t> ids;  // form ids, as they are

  // What keeps related dialogues together under --split: the first human turn, or the text, or the bytes of the ids.
  std::string split_key() const;
};

// The fields of a form, for messages: "prompt and response", "text" and so on.
std::string_view form_name(Record::Form form);

struct RecordOptions {
  PromptTemplate prompt_template = PromptTemplate::none;
  FieldNames fields;
  bool allow_ids = false;  // whether the form {"ids"} is known
};

// Parses one line. A record that fits several forms is the first of: pair, prompt and response, messages, prompt, text,
// ids; other keys are ignored. Whole dialogues are split after their last "\n\nAssistant:". Messages alternate between
// the roles user and assistant, begin with user, and always take the human-assistant form; the template wraps `prompt`
// fields only. Throws Error(Fault::input, `where`) on broken JSON, bad Unicode, a missing or mistyped field, a dialogue
// without an assistant turn, and a prompt that the template would wrap a second time.
Record parse_record(std::string_view line, const std::string& where, const RecordOptions& options);

}  // namespace tercet
