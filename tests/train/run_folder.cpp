#include "train/run_folder.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "temporary_folder.h"
#include "train/settings.h"
#include "train/signals.h"
#include "train/toml.h"
#include "train/version.h"

namespace tercet {
namespace {
namespace fs = std::filesystem;

using testing::TemporaryFolder;

Json settings(int64_t steps = 10, double lr = 1e-5) {
  Json json = Json::object();
  json.set("data", Json::Array{Json("a \"b\".jsonl"), Json("c=2")}).set("steps", steps).set("lr", lr);
  return json.set("truncate", false).set("seed", uint64_t{1} << 63).set("fields", "");
}

Json hashes(const std::string& hash = "00ff") {
  Json json = Json::object();
  return json.set("/data/a b.jsonl", hash);
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string message_of(const auto& function) {
  try {
    function();
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "no error";
}

// Runs `body` in a child process; its exit code, or minus the signal that ended it.
int in_child(const auto& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception&) {
      code = 98;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("a new run folder is created with its parents and holds a readable record of the run") {
  const TemporaryFolder temporary;
  const std::string path = temporary.path + "/a/run";
  {
    RunFolder folder({.path = path, .step = "sft"});
    folder.write_or_check_config(settings(), hashes());
    CHECK(folder.file("x") == path + "/x");
  }
  const RunRecord record = read_run_record(path);
  CHECK(record.step == "sft");
  CHECK(record.version == tercet_version());
  CHECK(record.settings == settings());
  CHECK(record.input_hashes == hashes());
}

TEST_CASE("a folder that holds a run is refused unless it is resumed or overwritten") {
  const TemporaryFolder temporary;
  const RunFolderOptions options{.path = temporary.path, .step = "sft"};
  { RunFolder(options).write_or_check_config(settings(), hashes()); }
  write(temporary.path + "/model.h5", "weights");
  write(temporary.path + "/checkpoints/step-00000001.h5", "checkpoint");
  write(temporary.path + "/notes.txt", "mine");
  CHECK(message_of([&] { RunFolder folder(options); }).find("holds a run already; give --resume, --overwrite") !=
        std::string::npos);
  {
    RunFolder folder({.path = temporary.path, .step = "sft", .resume = true});
    CHECK(fs::exists(temporary.path + "/checkpoints/step-00000001.h5"));
  }
  RunFolder folder({.path = temporary.path, .step = "reward", .overwrite = true});
  CHECK(fs::exists(temporary.path + "/model.h5"));
  folder.write_or_check_config(settings(), hashes());
  CHECK_FALSE(fs::exists(temporary.path + "/model.h5"));
  CHECK(read_run_record(temporary.path).step == "reward");
  CHECK(fs::is_empty(temporary.path + "/checkpoints"));
  CHECK(fs::exists(temporary.path + "/notes.txt"));
}

TEST_CASE("a folder with files but no run is refused, one left by a run that ended before its record is taken") {
  const TemporaryFolder temporary;
  const RunFolderOptions options{.path = temporary.path, .step = "sft"};
  write(temporary.path + "/.lock", "");
  write(temporary.path + "/inputs", "");
  { RunFolder folder(options); }
  write(temporary.path + "/thesis.tex", "mine");
  CHECK(message_of([&] { RunFolder folder(options); }).find("holds thesis.tex but no run") != std::string::npos);
}

TEST_CASE("a run that never begins leaves nothing: no folder, no lock, and the old run under --overwrite") {
  const TemporaryFolder temporary;
  { RunFolder folder({.path = temporary.path + "/a/b/run/", .step = "sft", .tensorboard = true}); }
  { RunFolder folder({.path = temporary.path, .step = "sft"}); }
  CHECK(fs::is_empty(temporary.path));
  { RunFolder({.path = temporary.path, .step = "sft"}).write_or_check_config(settings(), hashes()); }
  write(temporary.path + "/model.h5", "weights");
  { RunFolder folder({.path = temporary.path, .step = "sft", .overwrite = true}); }
  CHECK(fs::exists(temporary.path + "/model.h5"));
  CHECK(read_run_record(temporary.path).settings == settings());
}

TEST_CASE("a run is finished once it has its model and its report, and no longer when it is resumed") {
  const TemporaryFolder temporary;
  CHECK_FALSE(holds_finished_run(temporary.path));
  const RunFolderOptions options{.path = temporary.path, .step = "sft"};
  RunFolder(options).write_or_check_config(settings(), hashes());
  write(temporary.path + "/model.h5", "weights");
  CHECK_FALSE(holds_finished_run(temporary.path));
  write(temporary.path + "/report.html", "report");
  CHECK(holds_finished_run(temporary.path));
  RunFolder resumed({.path = temporary.path, .step = "sft", .resume = true});
  resumed.check_config(settings(), hashes());
  CHECK(holds_finished_run(temporary.path));
  resumed.write_or_check_config(settings(), hashes());
  CHECK_FALSE(holds_finished_run(temporary.path));
}

TEST_CASE("resuming needs a run, of the same step") {
  const TemporaryFolder temporary;
  const auto open = [&](const char* step) {
    return message_of([&] { RunFolder folder({.path = temporary.path, .step = step, .resume = true}); });
  };
  CHECK(open("sft").find("no run to resume") != std::string::npos);
  { RunFolder({.path = temporary.path, .step = "sft"}).write_or_check_config(settings(), hashes()); }
  CHECK(open("ppo").find("holds a run of sft") != std::string::npos);
  CHECK(open("sft") == "no error");
}

TEST_CASE("a folder in use by another process is refused, and free again when that process ends") {
  const TemporaryFolder temporary;
  const RunFolderOptions options{.path = temporary.path, .step = "sft"};
  int ready[2], go[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(go) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RunFolder folder(options);
    char byte = 0;
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(message_of([&] { RunFolder folder(options); }).find("in use by another process") != std::string::npos);
  REQUIRE(::write(go[1], &byte, 1) == 1);
  ::waitpid(child, nullptr, 0);
  CHECK(message_of([&] { RunFolder folder(options); }) == "no error");
}

TEST_CASE("a resumed run may change lengths and cadences and nothing else") {
  const TemporaryFolder temporary;
  { RunFolder({.path = temporary.path, .step = "sft"}).write_or_check_config(settings(), hashes()); }
  RunFolder folder({.path = temporary.path, .step = "sft", .resume = true});
  folder.write_or_check_config(settings(20), hashes());
  CHECK(read_run_record(temporary.path).settings == settings(20));
  CHECK(message_of([&] {
          folder.write_or_check_config(settings(20, 2e-5), hashes());
        }).find("--lr was 1e-05 and is 2e-05") != std::string::npos);
  CHECK(message_of([&] {
          folder.write_or_check_config(settings(20), hashes("1234"));
        }).find("the hash of /data/a b.jsonl was \"00ff\" and is \"1234\"") != std::string::npos);
  Json more = settings(20);
  more.set("dropout", 0.1);
  CHECK(message_of([&] { folder.write_or_check_config(more, hashes()); }).find("--dropout was nothing") !=
        std::string::npos);
}

TEST_CASE("logs are lines of JSON and are cut back to the positions of a checkpoint") {
  const TemporaryFolder temporary;
  Json line = Json::object();
  line.set("step", 1).set("loss", 0.5);
  Json positions;
  {
    RunFolder folder({.path = temporary.path, .step = "sft"});
    folder.write_or_check_config(settings(), hashes());
    folder.metrics(line);
    folder.timings(line);
    positions = folder.log_positions();
    folder.metrics(line);
    folder.sample(line);
  }
  const std::string text = "{\"step\":1,\"loss\":0.5}\n";
  CHECK(read_file(temporary.path + "/metrics.jsonl") == text + text);
  RunFolder folder({.path = temporary.path, .step = "sft", .resume = true});
  folder.truncate_logs(positions);
  CHECK(read_file(temporary.path + "/metrics.jsonl") == text);
  CHECK(read_file(temporary.path + "/samples.jsonl").empty());
  folder.metrics(line);
  CHECK(read_file(temporary.path + "/metrics.jsonl") == text + text);
  positions.set("timings.jsonl", int64_t{1000});
  CHECK(message_of([&] { folder.truncate_logs(positions); }).find("fewer than the 1000 bytes") != std::string::npos);
}

TEST_CASE("events of TensorBoard are written when asked for, and cut back with the logs") {
  const TemporaryFolder temporary;
  const std::string events = temporary.path + "/tensorboard/events.out.tfevents.tercet";
  RunFolderOptions options{.path = temporary.path, .step = "sft", .tensorboard = true};
  Json line = Json::object();
  line.set("step", 1).set("loss", 0.5);
  Json positions;
  std::string before;
  {
    RunFolder folder(options);
    folder.write_or_check_config(settings(), hashes());
    folder.metrics(line);
    positions = folder.log_positions();
    before = read_file(events);
    folder.timings(line);
    CHECK(read_file(events).size() > before.size());
  }
  CHECK(before.find("brain.Event:2") != std::string::npos);
  options.resume = true;
  {
    RunFolder folder(options);
    folder.truncate_logs(positions);
    CHECK(read_file(events) == before);
    folder.metrics(line);
    CHECK(read_file(events).size() > before.size());
  }
  // A checkpoint of a run that had no events: they begin with the resumed run.
  Json others = Json::object();
  for (const auto& [name, position] : positions.as_object())
    if (name.find("tensorboard") == std::string::npos) others.set(name, position);
  RunFolder folder(options);
  folder.truncate_logs(others);
  CHECK(read_file(events).empty());
  folder.metrics(line);
  CHECK(read_file(events).size() == before.size());
}

TEST_CASE("a kept input survives the deletion of its source and is not replaced") {
  const TemporaryFolder temporary;
  const std::string source = temporary.path + "/source.h5";
  write(source, "first");
  RunFolder folder({.path = temporary.path + "/run", .step = "sft"});
  folder.write_or_check_config(settings(), hashes());
  const std::string kept = folder.keep_input(source, "model.h5");
  CHECK(kept == temporary.path + "/run/inputs/model.h5");
  fs::remove(source);
  write(source, "second");
  CHECK(folder.keep_input(source, "model.h5") == kept);
  CHECK(read_file(kept) == "first");
}

TEST_CASE("the first signal asks for a stop and says which exit code follows") {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 143}, {SIGUSR1, 0}}) {
    CAPTURE(signal);
    CHECK(in_child([signal = signal] {
            install_signal_handlers();
            if (stop_signal() != 0) return 1;
            ::raise(signal);
            return stop_signal() == signal ? 42 : 2;
          }) == 42);
    CHECK(stop_exit_code(signal) == code);
  }
}

TEST_CASE("a second signal exits at once") {
  CHECK(in_child([] {
          install_signal_handlers();
          ::raise(SIGINT);
          ::raise(SIGTERM);
          return 1;
        }) == 143);
  CHECK(in_child([] {
          install_signal_handlers();
          ::raise(SIGTERM);
          ::raise(SIGINT);
          return 1;
        }) == 130);
}

TEST_CASE("SIGUSR1 comes ahead of another signal: repeated it is nothing new, and one more signal still saves") {
  CHECK(in_child([] {
          install_signal_handlers();
          ::raise(SIGUSR1);
          ::raise(SIGUSR1);
          ::raise(SIGTERM);
          return stop_signal() == SIGTERM ? 42 : 1;
        }) == 42);
}

TEST_CASE("TOML that is written is read back") {
  Json values = Json::Array{Json("plain"),       Json("quote \" backslash \\ tab \t line\n del \x7f unicode \u00e9"),
                            Json(int64_t{-7}),   Json(uint64_t{1} << 63),
                            Json(0.1),           Json(1e-300),
                            Json(3.0),           Json(true),
                            Json(Json::Array{}), Json(Json::Array{Json("a"), Json("b, ]")})};
  std::string text;
  for (size_t i = 0; i < values.as_array().size(); ++i)
    text += toml_line("key " + std::to_string(i), values.as_array()[i]);
  text += toml_table("a.b") + toml_line("x", 1);
  const std::vector<TomlEntry> entries = parse_toml(text, "f");
  REQUIRE(entries.size() == values.as_array().size() + 1);
  for (size_t i = 0; i < values.as_array().size(); ++i) {
    CHECK(entries[i].key == "key " + std::to_string(i));
    CHECK(entries[i].value.dump() == values.as_array()[i].dump());
    CHECK(entries[i].line == static_cast<int>(i) + 1);
  }
  CHECK(entries.back().table == "a.b");
}

TEST_CASE("the tables of a TOML document are listed with their lines, empty ones too") {
  const std::vector<TomlTable> tables =
      parse_toml_document("a = 1\n[one]\n\n[two] # nothing\n[three]\nb = 2\n", "f").tables;
  REQUIRE(tables.size() == 3);
  CHECK((tables[0].name == "one" && tables[0].line == 2));
  CHECK((tables[1].name == "two" && tables[1].line == 4));
  CHECK((tables[2].name == "three" && tables[2].line == 5));
}

TEST_CASE("TOML written by hand is read: comments, underscores, literal strings, arrays over lines") {
  const auto entries = parse_toml(
      "# comment\r\n\r\n a_b = 1_000 # end\n'c d' = 'C:\\x'\nlist = [ # first\n  \"x\", # second\n  'y',\n]\n"
      "[ table ]\nr = +1.5e3\nu = \"\\u00e9\\n\"\nflag = false",
      "f");
  REQUIRE(entries.size() == 6);
  CHECK(entries[0].value == Json(1000));
  CHECK(entries[1].value == Json("C:\\x"));
  CHECK(entries[2].value == Json(Json::Array{Json("x"), Json("y")}));
  CHECK(entries[3].value == Json(1500.0));
  CHECK(entries[3].table == "table");
  CHECK(entries[3].line == 10);
  CHECK(entries[4].value == Json("\u00e9\n"));
  CHECK(entries[5].value == Json(false));
}

TEST_CASE("TOML that cannot be read is refused with its line") {
  for (const auto& [text, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"a = 1\na = 2", "f:2: the key \"a\" appears twice"},
           {"[t]\n[t]", "f:2: the table [t] appears twice"},
           {"a", "f:1: expected '=' after \"a\""},
           {"= 1", "f:1: expected a key"},
           {"a = b", "f:1: cannot read the value `b`"},
           {"a = 1979-05-27", "f:1: cannot read the value"},
           {"a = inf", "f:1: cannot read the value"},
           {"a = \"x", "f:1: the string has no closing quote"},
           {"a = \"\"\"x\"\"\"", "f:1: multi-line strings are not read"},
           {"a = \"\\q\"", "f:1: unknown escape"},
           {"a = \"\\ud800\"", "f:1: bad code point"},
           {"a = 1\nb = \"\xa3\"", "f:2: not valid UTF-8; save the file as UTF-8"},
           {"a = [1, 2", "f:1: the array has no ']'"},
           {"a = [1 2]", "f:1: expected ',' or ']'"},
           {"a = {b = 1}", "f:1: inline tables are not read"},
           {"a.b = 1", "f:1: dotted keys are not read"},
           {"[[a]]", "f:1: arrays of tables are not read"},
           {"a = 1 2", "f:1: unexpected '2'"}}) {
    CAPTURE(text);
    const std::string what = message_of([&, text = text] { parse_toml(text, "f"); });
    CHECK_MESSAGE(what.find(message) != std::string::npos, what);
  }
}

TEST_CASE("a warm-up below 1 is a share of the steps, rounded up, and else a number of steps") {
  CommonSettings common;
  common.warmup = 0.03;
  CHECK(make_schedule(common, 1, 100).warmup_steps == 3);
  CHECK(make_schedule(common, 1, 101).warmup_steps == 4);
  CHECK(make_schedule(common, 1, 1).warmup_steps == 1);
  common.warmup = 0;
  CHECK(make_schedule(common, 1, 100).warmup_steps == 0);
  common.warmup = 25;
  CHECK(make_schedule(common, 1, 100).warmup_steps == 25);
  common.schedule = "step";
  CHECK(message_of([&] { make_schedule(common, 1, 100); }).find("--schedule: unknown schedule") != std::string::npos);
}

TEST_CASE("the recorded version is that of the build") {
  const std::string build = read_file(TERCET_SOURCE_DIR "/CMakeLists.txt");
  CHECK(build.find("project(tercet VERSION " + tercet_version() + " ") != std::string::npos);
}

}  // namespace
}  // namespace tercet
