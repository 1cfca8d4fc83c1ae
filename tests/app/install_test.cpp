// What `make install` puts beside the program.
#include <doctest/doctest.h>

#include "app/flags.h"
#include "app/manual.h"
#include "app/program.h"

namespace tercet {
namespace {

bool present(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null").c_str()) == 0;
}

std::string shell(const TemporaryFolder& folder, const std::string& command) {
  const std::string out = folder.path + "/shell-out";
  CHECK(std::system(("bash -c " + shell_quoted(command) + " > " + out + " 2>&1").c_str()) == 0);
  return read_file(out);
}

TEST_CASE("the manual page has every flag of every command, and roff has nothing to say against it") {
  const std::string page = manual_page();
  for (const Command& command : commands()) {
    CAPTURE(command.name);
    const size_t section = page.find("\n.SS " + command.name + "\n");
    REQUIRE(section != std::string::npos);
    const std::string text = page.substr(section, page.find("\n.SS ", section + 1) - section);
    for (const Flag& flag : flags())
      if (takes(command, flag) && !flag.positional) {
        std::string name = "--" + flag.name, escaped;
        for (const char c : name) escaped += c == '-' ? "\\-" : std::string(1, c);
        CHECK_MESSAGE(contains(text, "\n.B " + escaped), escaped);
      }
  }
  if (!present("groff")) return;
  const TemporaryFolder folder;
  CHECK(shell(folder, "groff -man -ww -Tutf8 -z " + folder.file("tercet.1", page)) == "");
}

TEST_CASE("bash completes commands, flags and the values of a flag") {
  const TemporaryFolder folder;
  const std::string script = folder.file("completion", bash_completion());
  const auto completed = [&](const std::string& words) {
    return shell(folder, "source " + script + "; COMP_WORDS=(tercet " + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tercet; echo ${COMPREPLY[@]}");
  };
  CHECK(completed("re") == "reward\n");
  CHECK(completed("sft --sch") == "--schedule\n");
  CHECK(completed("sft --schedule co") == "cosine constant\n");
  CHECK(completed("ppo --whiten-advantages ''") == "on off\n");
  CHECK(completed("reward --rollo") == "\n");  // a flag of ppo
  CHECK(completed("bench k") == "kernels\n");
  CHECK(completed("sft --model mo") == "\n");  // files, by the default
  CHECK(contains(completed("generate --"), "--top-p"));
}

TEST_CASE("an installed program works from its link, and is taken away again") {
  const TemporaryFolder folder;
  const std::string script = "bash " TERCET_SOURCE_DIR "/tools/install.sh ", root = folder.path + "/root/usr";
  shell(folder, "DESTDIR=" + folder.path + "/root " + script + "install " TERCET_BINARY_DIR " /usr");
  CHECK(contains(shell(folder, root + "/bin/tercet --version"), "tercet "));
  const std::string model = make_model(folder);
  CHECK(contains(
      shell(folder, root + "/bin/tercet generate --device emu --max-new-tokens 2 --prompt hi --model " + model),
      "\"response\""));
  CHECK(read_file(root + "/share/man/man1/tercet.1") == manual_page());
  CHECK(read_file(root + "/share/bash-completion/completions/tercet") == bash_completion());
  shell(folder, "DESTDIR=" + folder.path + "/root " + script + "uninstall " TERCET_BINARY_DIR " /usr");
  CHECK(shell(folder, "find " + root + " ! -type d") == "");
}

}  // namespace
}  // namespace tercet
