// Lines of a terminal by libedit, which no other file knows.
#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>

#include "app/line_input.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "text/unicode.h"

namespace tercet {
namespace {

constexpr int kHistoryLines = 1000;

volatile std::sig_atomic_t terminal_changed = 0;

// Code points beyond wchar_t do not exist on this platform.
static_assert(sizeof(wchar_t) == sizeof(char32_t));

std::wstring wide(const std::string& text) {
  std::wstring result;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8_step(text, i);
    result += static_cast<wchar_t>(step.code_point);
    i += step.bytes;
  }
  return result;
}

std::string narrow(const wchar_t* text) {
  std::string result;
  for (; *text != L'\0'; ++text) append_utf8(result, static_cast<char32_t>(*text));
  return result;
}

// The terminal as it was is back when this ends.
class TerminalSettings {
 public:
  TerminalSettings() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) fail_errno("cannot read the terminal's settings", "stdin");
  }
  ~TerminalSettings() { ::tcsetattr(STDIN_FILENO, TCSANOW, &before_); }
  TerminalSettings(const TerminalSettings&) = delete;
  TerminalSettings& operator=(const TerminalSettings&) = delete;

  // While lines are not edited Ctrl-D is a character like any other, which waits for the next line: the terminal's own
  // end of input would be lost when editing begins. libedit switches it on whenever a line ends.
  void keep_end_of_input() const {
    termios settings = before_;
    settings.c_cc[VEOF] = _POSIX_VDISABLE;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  }

 private:
  termios before_ = {};
};

class LineEditor final : public LineInput {
 public:
  LineEditor() {
    // libedit writes by the locale; tercet reads and writes UTF-8 whatever it is.
    if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) fail_run("the locale C.UTF-8 is missing", "terminal");
    history_ = history_winit();
    editor_ = el_init("tercet", stdin, stdout, stderr);
    if (history_ == nullptr || editor_ == nullptr) fail_run("cannot edit lines on this terminal", "terminal");
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(editor_, EL_PROMPT, prompt_of);
    el_wset(editor_, EL_GETCFN, read_character);
    el_wset(editor_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_wset(editor_, EL_BIND, L"^D", L"em-delete-or-list", nullptr);
    el_source(editor_, nullptr);
    handle_signals({SIGWINCH, SIGCONT}, [](int) { terminal_changed = 1; });
  }

  ~LineEditor() override {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_wend(history_);
  }

  std::optional<std::string> next(const std::string& prompt) override {
    prompt_ = wide(prompt);
    int count = 0;
    const wchar_t* wide_line = el_wgets(editor_, &count);
    terminal_.keep_end_of_input();
    if (wide_line == nullptr || count <= 0) return std::nullopt;
    HistEventW event;
    if (*wide_line != L'\n') history_w(history_, &event, H_ENTER, wide_line);
    std::string line = narrow(wide_line);
    if (line.ends_with('\n')) line.pop_back();
    return line;
  }

 private:
  static LineEditor& of(EditLine* editor) {
    void* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }

  static wchar_t* prompt_of(EditLine* editor) { return of(editor).prompt_.data(); }

  // 1 and a character, 0 at the end of the input, -1 at a Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* character) {
    std::string& pending = of(editor).pending_;
    while (true) {
      if (!pending.empty()) {
        const Utf8Step step = decode_utf8_step(pending, 0);
        if (step.status != Utf8Step::Status::truncated) {
          pending.erase(0, step.bytes);
          *character = static_cast<wchar_t>(step.code_point);
          return 1;
        }
      }
      if (interrupted()) return -1;
      if (!wait_for_stdin()) {
        if (!interrupted()) redraw(editor);
        continue;
      }
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count == 0) return 0;
      if (count < 0 && errno != EINTR) return -1;
      if (count > 0) pending += byte;
    }
  }

  // The terminal has another size, or the process was stopped and goes on.
  static void redraw(EditLine* editor) {
    if (terminal_changed == 0) return;
    terminal_changed = 0;
    el_resize(editor);
    el_wset(editor, EL_PREP_TERM, 1);
    el_wset(editor, EL_REFRESH);
  }

  TerminalSettings terminal_;
  HistoryW* history_ = nullptr;
  EditLine* editor_ = nullptr;
  std::wstring prompt_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace

std::unique_ptr<LineInput> edited_input() { return std::make_unique<LineEditor>(); }

}  // namespace tercet
