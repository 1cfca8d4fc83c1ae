// A dialogue through pipes and through a terminal.
#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "app/program.h"
#include "text/unicode.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

std::vector<std::string> chat_arguments(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"chat", "--model", model, "--device", "cpu"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

ProgramResult chat(const std::string& model, const std::string& input, const std::vector<std::string>& more = {}) {
  const ProgramResult result = run_program(chat_arguments(model, more), input);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  return result;
}

std::string generated(const std::string& model, const std::string& prompt, const std::string& seed,
                      const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"generate", "--model",  model, "--prompt=" + prompt, "--seed",
                                        seed,       "--device", "cpu", "--template",         "none"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProgramResult result = run_program(arguments);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return json_lines(result.out).at(0).at("response").as_string();
}

std::string stripped(const std::string& text) { return std::string(strip_spaces(text)); }

std::vector<std::string> saved_turns(const std::string& path) {
  std::vector<std::string> turns;
  const Json record = parse_json(read_file(path), path);
  for (const Json& message : record.at("messages").as_array()) turns.push_back(message.at("content").as_string());
  return turns;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

TEST_CASE("each answer of a chat is what generate says to the hand-written history, and sft reads what it saved") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder), saved = folder.path + "/saved.jsonl";
  const std::vector<std::string> flags = {"--max-new-tokens", "9", "--top-k", "20"};
  auto with_seed = flags;
  with_seed.insert(with_seed.end(), {"--seed", "5"});
  const ProgramResult result =
      chat(model, "the tin\n  on a hen  \n/save " + saved + "\n/exit\nnever read\n", with_seed);
  const std::string first = stripped(generated(model, "\n\nHuman: the tin\n\nAssistant:", "5", flags));
  const std::string second = stripped(
      generated(model, "\n\nHuman: the tin\n\nAssistant: " + first + "\n\nHuman: on a hen\n\nAssistant:", "6", flags));
  REQUIRE_FALSE(first.empty());
  REQUIRE_FALSE(second.empty());
  CHECK(result.out == first + "\n" + second + "\n");
  CHECK(saved_turns(saved) == std::vector<std::string>{"the tin", first, "on a hen", second});

  const ProgramResult sft = run_program({"sft", "--model", model, "--data", saved, "--device", "cpu", "--max-length",
                                         "100", "--steps", "1", "--out", folder.path + "/run"});
  CHECK_MESSAGE(sft.exit_code == 0, sft.err);
  CHECK_MESSAGE(contains(sft.err, "data: 1 sequences"), sft.err);
}

TEST_CASE("without a template chat completes what is typed, spaces and all") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder), saved = folder.path + "/saved.jsonl";
  const std::vector<std::string> flags = {"--max-new-tokens", "7"};
  const ProgramResult result =
      chat(model, "the tin \n on\n/save " + saved + "\n", {"--template", "none", "--max-new-tokens", "7"});
  const std::string first = generated(model, "the tin ", "1", flags);
  const std::string second = generated(model, "the tin " + first + " on", "2", flags);
  CHECK(result.out == first + "\n" + second + "\n");
  CHECK(parse_json(read_file(saved), saved).at("text") == Json("the tin " + first + " on" + second));
}

TEST_CASE("commands of a chat: reset, help, save that overwrites nothing, and the unknown ones are named") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder), saved = folder.path + "/saved.jsonl";
  const ProgramResult result =
      chat(model,
           "/save " + saved + "\n/save\nthe\\\ntin\n/reset\n\n /exit\n/save " + saved + "\n/save " + saved +
               "\n/save " + folder.path + "/no/f\n/help\n/nothing here\n/reset now\n\xFF\n",
           {"--max-new-tokens", "9", "--temperature", "0"});
  for (const char* message :
       {"nothing was said yet", "/save needs the name of a file", "saved.jsonl exists already; give another name",
        "there is no folder", "/reset      forget the dialogue", "there is no command /nothing here; /help lists them",
        "there is no command /reset now", "the text is not UTF-8; it was not sent"})
    CHECK_MESSAGE(count(result.err, message) == 1, message << "\n" << result.err);
  CHECK(saved_turns(saved).at(0) == "/exit");
  CHECK(saved_turns(saved).size() == 2);
  // The lines that a backslash joins are one question.
  const std::string first = stripped(
      generated(model, "\n\nHuman: the\ntin\n\nAssistant:", "1", {"--max-new-tokens", "9", "--temperature", "0"}));
  CHECK_MESSAGE(result.out.starts_with(first + "\n"), result.out);
}

TEST_CASE(
    "turns that no longer fit leave the prompt, once said for each time, and a text that is too long is refused") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::vector<std::string> flags = {"--max-new-tokens", "6", "--temperature", "0"};
  auto limited = flags;
  limited.insert(limited.end(), {"--max-prompt-tokens", "60"});
  const std::string saved = folder.path + "/saved.jsonl";
  const ProgramResult result =
      chat(model, "a tin\nthe hen\non\n" + std::string(70, 'x') + "\nthen\n/save " + saved + "\n", limited);
  CHECK_MESSAGE(contains(result.err, "a prompt has at most 60; shorten it; it was not sent"), result.err);
  const size_t told = count(result.err, "the model no longer sees its ");
  CHECK_MESSAGE(told >= 1, result.err);
  CHECK(told <= 3);
  const std::vector<std::string> turns = saved_turns(saved);
  REQUIRE(turns.size() == 8);
  // No more than one of the earlier turns fits beside the last one.
  const std::string history = "\n\nHuman: then\n\nAssistant:";
  const std::string one_earlier = "\n\nHuman: " + turns[4] + "\n\nAssistant: " + turns[5] + history;
  CHECK((turns[7] == stripped(generated(model, history, "1", flags)) ||
         turns[7] == stripped(generated(model, one_earlier, "1", flags))));
}

TEST_CASE("a stop string ends an answer of generate and chat across the borders of tokens and is not printed") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::vector<std::string> flags = {"--max-new-tokens", "24", "--seed", "3"};
  const std::string whole = generated(model, "\n\nHuman: the\n\nAssistant:", "3", {"--max-new-tokens", "24"});
  // Some characters from the middle, which begin and end at code points.
  std::string stop;
  size_t begin = 0;
  for (size_t i = whole.size() / 2; i < whole.size() && stop.size() < 4; ++i) {
    const bool ascii = static_cast<unsigned char>(whole[i]) > 32 && static_cast<unsigned char>(whole[i]) < 127;
    if (ascii && stop.empty()) begin = i;
    if (ascii)
      stop += whole[i];
    else if (!stop.empty() && stop.size() < 2)
      stop.clear();
    else if (!stop.empty())
      break;
  }
  REQUIRE_MESSAGE(stop.size() >= 2, whole);
  begin = whole.find(stop);
  const std::string expected = whole.substr(0, begin);
  CHECK(generated(model, "\n\nHuman: the\n\nAssistant:", "3",
                  {"--max-new-tokens", "24", "--stop", stop, "unseen text"}) == expected);
  auto with_stop = flags;
  with_stop.insert(with_stop.end(), {"--stop", stop});
  CHECK(chat(model, "the\n", with_stop).out == stripped(expected) + "\n");
}

TEST_CASE("chat refuses what cannot answer or has no room for an answer") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder), reward = folder.path + "/reward.h5";
  REQUIRE(run_program({"import", TERCET_SOURCE_DIR "/tests/golden/import/safetensors-fp32-reward", "--out", reward})
              .exit_code == 0);
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramResult result = run_program(arguments, "hi\n");
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_MESSAGE(contains(result.err, message), result.err);
  };
  refused({"chat", "--model", reward}, "a reward model cannot answer prompts");
  refused({"chat", "--model", model}, "--max-new-tokens: answers of 256 tokens leave no room for a prompt");
  refused(chat_arguments(model, {"--max-new-tokens", "28", "--max-prompt-tokens", "101"}), "--max-prompt-tokens");
  refused(chat_arguments(model, {"--max-new-tokens", "28", "--stop", ""}), "--stop");
}

// The program on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TERCET_BINARY_DIR "/tercet");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    winsize size = {40, 200, 0, 0};
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    REQUIRE(child_ >= 0);
    if (child_ > 0) return;
    ::setenv("TERM", "xterm", 1);
    ::setenv("HOME", "/nonexistent", 1);  // no .editrc
    ::execv(words[0], words.data());
    ::_exit(99);
  }
  ~Terminal() {
    if (child_ > 0) ::kill(child_, SIGKILL);
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
    ::close(terminal_);
  }

  void type(const std::string& text) { REQUIRE(::write(terminal_, text.data(), text.size()) == std::ssize(text)); }

  // Reads until `text` appears behind what was waited for before.
  void wait_for(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (seen_.find(text, from_) == std::string::npos) {
      REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, "no \"" << text << "\" in:\n" << seen_.substr(from_));
      REQUIRE_MESSAGE(read_some(), "ended before \"" << text << "\":\n" << seen_);
    }
    from_ = seen_.find(text, from_) + text.size();
  }

  // And until the program edits the line, which libedit begins after it has written the prompt. What is typed before
  // that is the terminal's own line, with its own echo and keys.
  void wait_for_prompt(const std::string& prompt) {
    wait_for(prompt);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (termios mode = {}; ::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & ICANON) != 0;) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      ::usleep(1000);
    }
  }

  int exit_code() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& seen() const { return seen_; }

 private:
  bool read_some() {
    pollfd descriptor = {terminal_, POLLIN, 0};
    if (::poll(&descriptor, 1, 1000) == 0) return true;
    char bytes[4096];
    const ssize_t size = ::read(terminal_, bytes, sizeof bytes);
    if (size > 0) seen_.append(bytes, static_cast<size_t>(size));
    return size > 0;
  }

  pid_t child_ = -1;
  int terminal_ = -1;
  std::string seen_;
  size_t from_ = 0;
};

TEST_CASE("on a terminal lines are edited, UTF-8 too, and earlier ones come back; Ctrl-D ends") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder), saved = folder.path + "/saved.jsonl";
  Terminal terminal(chat_arguments(model, {"--max-new-tokens", "5", "--temperature", "0"}));
  terminal.wait_for("/help lists the commands, Ctrl-D ends");
  terminal.wait_for_prompt("> ");
  terminal.type("tex\x7f\x7fin\x01the caf\xC3\xA9\xC3\xA8\x7f \r");  // backspaces, Ctrl-A
  terminal.wait_for_prompt("> ");
  terminal.type("\x1b[A!\r");  // the line above
  terminal.wait_for_prompt("> ");
  terminal.type("on\\\r");
  terminal.wait_for_prompt("| ");
  terminal.type("a hen\r");
  terminal.wait_for_prompt("> ");
  terminal.type("/save " + saved + "\r");
  terminal.wait_for("saved in ");
  terminal.wait_for_prompt("> ");
  terminal.type("\x04");
  CHECK(terminal.exit_code() == 0);
  const std::vector<std::string> turns = saved_turns(saved);
  REQUIRE(turns.size() == 6);
  CHECK(turns[0] == "the caf\xC3\xA9 tin");
  CHECK(turns[2] == "the caf\xC3\xA9 tin!");
  CHECK(turns[4] == "on\na hen");
}

// Greedy answers of this model go on for as long as they may.
std::string make_talkative_model(const TemporaryFolder& folder) {
  const std::string config = folder.file(
      "long.json",
      R"({"model_type": "opt", "vocab_size": 272, "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 32,)"
      R"( "num_attention_heads": 2, "max_position_embeddings": 60000, "init_std": 0.3})");
  const std::string model = folder.path + "/long.h5";
  REQUIRE(run_program({"init", "--config", config, "--tokenizer", kTokenizerFolder, "--seed", "1", "--out", model})
              .exit_code == 0);
  return model;
}

TEST_CASE("Ctrl-C stops an answer and keeps what was said; at the prompt it ends the chat") {
  const TemporaryFolder folder;
  const std::string model = make_talkative_model(folder), saved = folder.path + "/saved.jsonl";
  Terminal terminal(chat_arguments(model, {"--max-new-tokens", "59000", "--temperature", "0"}));
  terminal.wait_for_prompt("> ");
  terminal.type("the tin\r");
  terminal.wait_for("the tin\r\n");
  terminal.wait_for("e");  // of the answer
  terminal.type("\x03");
  terminal.wait_for("stopped");
  terminal.wait_for_prompt("> ");
  terminal.type("/save " + saved + "\r");
  terminal.wait_for("saved in ");
  terminal.wait_for_prompt("> ");
  const std::vector<std::string> turns = saved_turns(saved);
  REQUIRE(turns.size() == 2);
  CHECK_FALSE(turns[1].empty());
  terminal.type("half a line\x03");
  CHECK(terminal.exit_code() == 0);
}

TEST_CASE("what is typed while an answer is printed is the next line, Ctrl-D too") {
  const TemporaryFolder folder;
  Terminal terminal(chat_arguments(make_talkative_model(folder), {"--max-new-tokens", "300", "--temperature", "0"}));
  terminal.wait_for_prompt("> ");
  terminal.type("the tin\r");
  terminal.wait_for("the tin\r\n");
  terminal.wait_for("e");  // of the answer
  terminal.type("/help\r\x04");
  terminal.wait_for("forget the dialogue");
  CHECK(terminal.exit_code() == 0);
}

TEST_CASE("an interrupt while a script's chat waits for a line ends it with exit code 0") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  int to_child[2], from_child[2];
  REQUIRE(::pipe(to_child) == 0);
  REQUIRE(::pipe(from_child) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(to_child[0], STDIN_FILENO);
    ::dup2(from_child[1], STDOUT_FILENO);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(98);
    ::execl(TERCET_BINARY_DIR "/tercet", "tercet", "chat", "--model", model.c_str(), "--max-new-tokens", "3",
            static_cast<char*>(nullptr));
    ::_exit(99);
  }
  REQUIRE(::write(to_child[1], "hi\n", 3) == 3);
  char byte = 0;
  while (byte != '\n') REQUIRE(::read(from_child[0], &byte, 1) == 1);  // the end of the answer
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(fd);
}

}  // namespace
}  // namespace tercet
