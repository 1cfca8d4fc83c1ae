#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/temporary_path.h"
#include "temporary_folder.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

struct TemporaryFolder : testing::TemporaryFolder {
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
};

template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);  // in place of doctest's
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string refusal(const std::string& place, PathKind kind) {
  try {
    const TemporaryPath path(place, kind);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "";
}

TEST_CASE("a file or folder in the making appears when it is published and else disappears") {
  const TemporaryFolder folder;
  for (const PathKind kind : {PathKind::file, PathKind::folder}) {
    const std::string place = folder.path + (kind == PathKind::file ? "/file" : "/folder");
    {
      const TemporaryPath unfinished(place, kind);
      if (kind == PathKind::folder) std::ofstream(unfinished.path() + "/part") << "x";
      CHECK(fs::exists(unfinished.path()));
    }
    CHECK(folder.entries() == (kind == PathKind::file ? 0 : 1));
    TemporaryPath finished(place, kind);
    TemporaryPath beside(place, kind);
    CHECK(beside.path() != finished.path());
    finished.publish();
    CHECK(fs::exists(place));
  }
  CHECK(folder.entries() == 2);
}

TEST_CASE("what a killed writer left is removed by the next writer of the same place, and nothing else is") {
  const TemporaryFolder folder;
  const std::string place = folder.path + "/out";
  for (const PathKind kind : {PathKind::file, PathKind::folder}) {
    CHECK(in_child([&] {
            const TemporaryPath path(place, kind);
            if (kind == PathKind::folder) std::ofstream(path.path() + "/part") << "x";
            return ::kill(::getpid(), SIGKILL);
          }) == -SIGKILL);
    CHECK(folder.entries() == 1);
    const TemporaryPath alive(place, kind);
    CHECK(folder.entries() == 1);
    const TemporaryPath other(place, kind);
    CHECK(fs::exists(alive.path()));
  }
  std::ofstream(place + ".partial-notes") << "mine";
  std::ofstream(place + "2.partial-1-1") << "of another place";
  { const TemporaryPath path(place, PathKind::file); }
  CHECK(folder.entries() == 2);
}

TEST_CASE("a place where nothing can be written is refused before anything is") {
  const TemporaryFolder folder;
  CHECK(refusal(folder.path + "/absent/x", PathKind::file) ==
        folder.path + "/absent/x: there is no folder " + folder.path + "/absent; create it first");
  CHECK(refusal(folder.path, PathKind::file) == folder.path + ": this is a folder; give the name of a file");
  CHECK(refusal(folder.path + "/x/", PathKind::file).find("there is no folder") != std::string::npos);
  CHECK(refusal(folder.path + "/" + std::string(300, 'x'), PathKind::file).find("File name too long") !=
        std::string::npos);
  CHECK(refusal("/proc/x", PathKind::folder).find("/proc/x: cannot create the folder") == 0);
  CHECK(folder.entries() == 0);
}

TEST_CASE("a guarded signal throws at the next write, an unguarded one is not caught, and a second one ends at once") {
  CHECK(in_child([] {
          const InterruptGuard guard;
          throw_if_interrupted();
          ::raise(SIGTERM);
          try {
            throw_if_interrupted();
          } catch (const Interrupted& stop) {
            return stop.signal() == SIGTERM ? 42 : 1;
          }
          return 2;
        }) == 42);
  CHECK(in_child([] {
          const InterruptGuard guard;
          ::raise(SIGINT);
          return ::raise(SIGINT);
        }) == 130);
  CHECK(in_child([] {
          { const InterruptGuard guard; }
          return ::raise(SIGINT);
        }) == -SIGINT);
}

}  // namespace
}  // namespace tercet
