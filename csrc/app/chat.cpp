// A dialogue on the terminal or through pipes: answers on stdout, all else on stderr. Answer n of a chat is the one
// that `generate` draws from the same prompt with a seed that is n - 1 higher.
#include <unistd.h>

#include <filesystem>

#include "app/inference.h"
#include "app/line_input.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "rollout/conversation.h"
#include "rollout/text_generation.h"

namespace tercet {
namespace {

constexpr const char* kHelp =
    "/reset      forget the dialogue\n"
    "/save FILE  write it as a record that sft reads\n"
    "/help       this text\n"
    "/exit       end, as Ctrl-D does\n"
    "A line that ends in a backslash goes on in the next one. Ctrl-C stops an answer; what was said is kept.\n"
    "A space in front sends a line that begins with a slash.";

// The longest prompt that leaves room for an answer.
int64_t prompt_limit(const ChatSettings& settings, const OptConfig& config) {
  const int64_t positions = config.max_position_embeddings;
  if (settings.max_new_tokens + 1 >= positions)
    fail_input(fmt::format("answers of {} tokens leave no room for a prompt in the model's {} positions",
                           settings.max_new_tokens, positions),
               "--max-new-tokens", "lower it");
  const int64_t room = positions - settings.max_new_tokens;
  if (settings.max_prompt_tokens > room)
    fail_input(fmt::format("prompts of {} and answers of {} tokens exceed the model's {} positions",
                           settings.max_prompt_tokens, settings.max_new_tokens, positions),
               "--max-prompt-tokens", "lower it or --max-new-tokens");
  return settings.max_prompt_tokens > 0 ? settings.max_prompt_tokens : room;
}

// An answer that is printed while it is drawn. In a dialogue the spaces around it are left out, as in its record.
class PrintedAnswer {
 public:
  explicit PrintedAnswer(PromptTemplate prompt_template) : raw_(prompt_template == PromptTemplate::none) {}

  void add(std::string_view piece) {
    text_ += piece;
    const std::string_view fresh = said().substr(printed_);
    printed_ += fresh.size();
    fmt::print("{}", fresh);
    std::fflush(stdout);
  }

  std::string_view said() const { return raw_ ? std::string_view(text_) : strip_spaces(text_); }

 private:
  bool raw_;
  std::string text_;
  size_t printed_ = 0;
};

class Chat {
 public:
  explicit Chat(const ChatSettings& settings)
      : settings_(settings),
        run_(open_run_device(settings)),
        info_(read_language_model_info(settings.model)),
        tokenizer_(info_.tokenizer(settings.model)),
        template_(
            parse_prompt_template(settings.prompt_template.empty() ? info_.prompt_template : settings.prompt_template)),
        conversation_(tokenizer_, template_, prompt_limit(settings, info_.config)),
        model_(run_, settings.model, info_, generator_options()) {}

  int run() {
    const bool terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
    catch_interrupts();
    const std::unique_ptr<LineInput> input = terminal ? edited_input() : plain_input();
    if (terminal) log::write_line("/help lists the commands, Ctrl-D ends");
    while (const auto text = next_text(*input)) {
      const std::string_view stripped = strip_spaces(*text);
      const bool is_command = text->starts_with('/');
      if (is_command && stripped == "/exit") return 0;
      if (is_command)
        obey(stripped);
      else if (!stripped.empty())
        answer(*text);
    }
    if (terminal) fmt::print("\n");
    return 0;
  }

 private:
  GeneratorOptions generator_options() const {
    const int64_t prompt = prompt_limit(settings_, info_.config);
    return {.prefix = "generator",
            .dtype = run_.dtype,
            .slots = 1,
            .max_prompt_tokens = prompt,
            .max_new_tokens = settings_.max_new_tokens,
            .prefill_tokens = prompt,
            .truncating_sampler = truncates(settings_)};
  }

  // One line, or several joined where a backslash ends them.
  static std::optional<std::string> next_text(LineInput& input) {
    std::string text;
    for (const char* prompt = "> ";; prompt = "| ") {
      const std::optional<std::string> line = input.next(prompt);
      if (!line) return std::nullopt;
      text += *line;
      if (!text.ends_with('\\')) return text;
      text.back() = '\n';
    }
  }

  void obey(std::string_view command) {
    const std::string_view name = command.substr(0, command.find(' '));
    if (name == "/save")
      save(std::string(strip_spaces(command.substr(name.size()))));
    else if (command == "/reset")
      conversation_.clear();
    else if (command == "/help")
      log::write_line(kHelp);
    else
      log::warn("there is no command {}; /help lists them, and a space in front sends the line", command);
  }

  void save(const std::string& path) {
    if (path.empty()) return log::warn("/save needs the name of a file");
    if (conversation_.empty()) return log::warn("nothing was said yet");
    if (std::filesystem::exists(path)) return log::warn("{} exists already; give another name", path);
    try {
      write_file_atomically(path, conversation_.record().dump() + "\n");
      log::info("saved in {}", path);
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
  }

  void answer(const std::string& text) {
    if (replace_ill_formed_utf8(text).replacements > 0) return log::warn("the text is not UTF-8; it was not sent");
    Conversation::Question question;
    try {
      question = conversation_.ask(text);
    } catch (const Error& error) {
      return log::warn("{}; it was not sent", error.what());
    }
    if (question.dropped > 0)
      log::info("the dialogue has outgrown the prompt: the model no longer sees its {} oldest turn{}", question.dropped,
                question.dropped == 1 ? "" : "s");
    const PrintedAnswer printed = draw(question.prompt);
    if (template_ != PromptTemplate::none && printed.said().empty())
      return log::info("the answer is empty; the question is forgotten");
    conversation_.add(text, std::string(printed.said()));
  }

  PrintedAnswer draw(const Prompt& prompt) {
    PrintedAnswer printed(template_);
    TextCallbacks callbacks;
    callbacks.piece = [&](size_t, std::string_view piece) { printed.add(piece); };
    callbacks.cancelled = [] { return interrupted(); };
    TextGenerationOptions options = text_generation_options(settings_);
    options.sampling.seed += answers_++;
    const Finish finish =
        generate_texts(*run_.stream, model_.generator(), tokenizer_, {&prompt, 1}, options, callbacks).front().finish;
    // A Ctrl-C from here on is one at the prompt.
    const bool stopped = interrupted();
    forget_interrupt();
    fmt::print("\n");
    std::fflush(stdout);
    if (stopped)
      log::info("stopped");
    else if (finish == Finish::length)
      log::info("cut at --max-new-tokens {}", settings_.max_new_tokens);
    return printed;
  }

  const ChatSettings& settings_;
  RunDevice run_;
  ModelInfo info_;
  Tokenizer tokenizer_;
  PromptTemplate template_;
  Conversation conversation_;
  AnsweringModel model_;
  uint64_t answers_ = 0;
};

}  // namespace

int run_chat(const ChatSettings& settings) { return Chat(settings).run(); }

}  // namespace tercet
