#include "app/command_line.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "app/program.h"
#include "base/error.h"
#include "train/run_folder.h"

namespace tercet {
namespace {

// What a command needs at least.
std::vector<std::string> least_arguments(const std::string& command) {
  if (command == "init") return {"init", "--config", "opt-125m", "--tokenizer", "t", "--out", "o.h5"};
  if (command == "import") return {"import", "folder", "--out", "o.h5"};
  if (command == "export") return {"export", "m.h5", "--out", "folder"};
  if (command == "info") return {"info", "m.h5"};
  if (command == "tokenize") return {"tokenize", "--model", "m.h5"};
  if (command == "score" || command == "eval") return {command, "--model", "m.h5", "--data", "d.jsonl"};
  if (command == "generate") return {"generate", "--model", "m.h5", "--prompt", "p"};
  if (command == "chat") return {"chat", "--model", "m.h5"};
  if (command == "compare") return {"compare", "run-a", "run-b"};
  if (command == "bench") return {"bench", "step"};
  if (command == "ppo")
    return {"ppo", "--actor", "a.h5", "--reward-model", "r.h5", "--data", "d.jsonl", "--out", "/tmp/tercet-no-run"};
  return {command, "--model", "m.h5", "--data", "d.jsonl", "--out", "/tmp/tercet-no-run"};
}

Invocation parse(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return std::get<Invocation>(parse_command_line(arguments));
}

std::string message_of(const std::vector<std::string>& arguments) {
  try {
    parse_command_line(arguments);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "parsed";
}

std::vector<std::string> with(const std::string& command, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = least_arguments(command);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A value that the flag allows and that is not its default.
std::string other_value(const Command& command, const Flag& flag) {
  const Json present = get_flag(command.defaults, flag);
  for (const std::string candidate : {"3", "0.25", "off", "linear", "cosine", "tokens", "all", "block", "none",
                                      "human-assistant", "bf16", "fp64", "cpu", "text"}) {
    try {
      const Invocation invocation = parse(least_arguments(command.name), {"--" + flag.name + "=" + candidate});
      if (get_flag(invocation.settings, flag) != present) return candidate;
    } catch (const Error&) {
    }
  }
  return "";
}

TEST_CASE("every flag of every command takes a value that differs from its default") {
  // On or nothing else; two that need another flag beside them; and those of `bench kernels` (bench_test.cpp).
  const std::set<std::string> excepted = {"deterministic", "resume", "ptx-data", "ptx-coef", "baseline", "overwrite",
                                          "data",          "split",  "fields",   "ops",      "repeats"};
  for (const Command& command : commands())
    for (const Flag& flag : flags()) {
      if (!takes(command, flag) || flag.required || excepted.contains(flag.name)) continue;
      if (command.name == "eval" && (flag.name == "reward-model" || flag.name == "reward-rule")) continue;
      if (command.name == "ppo" && (flag.name == "reward-model" || flag.name == "reward-rule"))
        continue;  // one of them
      if (command.name == "generate" && flag.name == "prompt") continue;
      CAPTURE(command.name);
      CAPTURE(flag.name);
      const bool is_switch = flag.value.empty();
      const std::string value = is_switch ? "" : other_value(command, flag);
      CHECK_MESSAGE((is_switch || !value.empty()), "no allowed value found");
      const Invocation invocation = is_switch ? parse(least_arguments(command.name), {"--" + flag.name})
                                              : parse(least_arguments(command.name), {"--" + flag.name, value});
      CHECK(get_flag(invocation.settings, flag) != get_flag(command.defaults, flag));
    }
}

TEST_CASE("no two flags of a command share a name, and every flag belongs to a command") {
  for (const Command& command : commands()) {
    std::set<std::string> names;
    for (const Flag& flag : flags())
      if (takes(command, flag)) CHECK_MESSAGE(names.insert(flag.name).second, command.name << " " << flag.name);
  }
  for (const Flag& flag : flags()) {
    bool taken = false;
    for (const Command& command : commands()) taken = taken || takes(command, flag);
    CHECK_MESSAGE(taken, flag.name);
  }
}

TEST_CASE("help of every command names every flag with its default") {
  for (const Command& command : commands()) {
    const ProgramResult result = run_program({command.name, "--help"});
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    CHECK(contains(result.out, "usage: tercet " + command.name));
    for (const Flag& flag : flags())
      if (takes(command, flag) && !is_plain_form(command, flag))
        CHECK_MESSAGE(contains(result.out, flag.help.substr(0, 12)), flag.name);
  }
  const std::string ppo = command_help(*std::ranges::find(commands(), "ppo", &Command::name));
  CHECK(contains(ppo, "beta of the KL penalty; the first one when adaptive. Default: 0.05."));
  CHECK(contains(ppo, "Sets --actor-lr and --critic-lr. (TRL, DeepSpeed-Chat: learning_rate)"));
  CHECK(contains(ppo, "(DeepSpeed-Chat: unsup_coef)"));
  CHECK_FALSE(contains(ppo, "--batch-size"));
}

TEST_CASE("help and version of the program") {
  const ProgramResult help = run_program({"--help"});
  CHECK(help.exit_code == 0);
  for (const Command& command : commands()) CHECK(contains(help.out, "  " + command.name + " "));
  const ProgramResult version = run_program({"--version"});
  CHECK(version.out.starts_with("tercet 0."));
}

TEST_CASE("defaults are those of the documentation") {
  const Json sft = parse(least_arguments("sft")).settings_as_json;
  CHECK(sft.at("lr") == Json(1e-5));
  CHECK(sft.at("batch-size") == Json(64));
  CHECK(sft.at("epochs") == Json(1.0));
  CHECK(sft.at("schedule") == Json("cosine"));
  CHECK(sft.at("warmup") == Json(0.03));
  CHECK(sft.at("adam-eps") == Json(1e-8));
  CHECK(sft.at("max-grad-norm") == Json(1.0));
  const Json ppo = parse(least_arguments("ppo")).settings_as_json;
  CHECK(ppo.at("actor-lr") == Json(1e-6));
  CHECK(ppo.at("critic-lr") == Json(5e-6));
  CHECK(ppo.at("kl-coef") == Json(0.05));
  CHECK(ppo.at("gamma") == Json(1.0));
  CHECK(ppo.at("gae-lambda") == Json(0.95));
  CHECK(ppo.at("clip-range") == Json(0.2));
  CHECK(ppo.at("ppo-epochs") == Json(4));
  CHECK(ppo.at("minibatches") == Json(1));
  CHECK(ppo.at("reward-clip") == Json(5.0));
  CHECK(ppo.at("missing-eos-penalty") == Json(1.0));
  CHECK(ppo.at("whiten-advantages") == Json(true));
  CHECK(ppo.at("adam-eps") == Json(1e-5));
  CHECK(ppo.at("schedule") == Json("linear"));
}

TEST_CASE("recorded settings are all of the command's, without the run's place and the plain forms") {
  const Json ppo = parse(least_arguments("ppo")).settings_as_json;
  for (const char* absent : {"out", "resume", "overwrite", "lr", "weight-decay", "max-grad-norm", "recompute",
                             "batch-size", "dropout", "top-k", "config"})
    CHECK_MESSAGE(ppo.find(absent) == nullptr, absent);
  for (const char* present : {"actor", "data", "actor-recompute", "critic-max-grad-norm", "seed", "deterministic"})
    CHECK_MESSAGE(ppo.find(present) != nullptr, present);
}

TEST_CASE("the plain form sets both models, the form of one model wins whatever the order") {
  const auto ppo = [](const std::vector<std::string>& more) {
    return std::get<PpoSettings>(parse(least_arguments("ppo"), more).settings);
  };
  CHECK(ppo({"--lr", "1e-4"}).actor_lr == 1e-4);
  CHECK(ppo({"--lr", "1e-4"}).critic_lr == 1e-4);
  CHECK(ppo({"--critic-lr", "2e-4", "--lr", "1e-4"}).critic_lr == 2e-4);
  CHECK(ppo({"--recompute", "block", "--actor-recompute", "none"}).actor_recompute == "none");
  CHECK(ppo({"--recompute", "block", "--actor-recompute", "none"}).critic_recompute == "block");
}

TEST_CASE("lists take several words, repeat, and keep brackets and commas as they are") {
  const auto sft = std::get<SftSettings>(
      parse({"sft", "--data", "a", "[b,c]", "--model", "m", "--data=d=2.5", "--out", "/tmp/tercet-no-run"}).settings);
  CHECK(sft.data == std::vector<std::string>{"a", "[b,c]", "d=2.5"});
  const auto generate = std::get<GenerateSettings>(
      parse({"generate", "--model", "m", "--prompt", "--x", "--stop", "[x]", "\n"}).settings);
  CHECK(generate.prompt == "--x");
  CHECK(generate.stop == std::vector<std::string>{"[x]", "\n"});
}

TEST_CASE("a configuration file takes every kind of flag and the command line wins") {
  const TemporaryFolder temporary;
  const std::string file = temporary.file(
      "sft.toml",
      "# a comment\nmodel = \"m.h5\"\ndata = [\"a.jsonl\",\n  \"b.jsonl=2\"]\nout = \"/tmp/tercet-no-run\"\n"
      "lr = 1\nmax-length = 256\ntruncate = true\nschedule = \"linear\"\n");
  const auto sft = std::get<SftSettings>(parse({"sft", "--config", file, "--max-length", "128"}).settings);
  CHECK(sft.model == "m.h5");
  CHECK(sft.data == std::vector<std::string>{"a.jsonl", "b.jsonl=2"});
  CHECK(sft.lr == 1.0);
  CHECK(sft.max_length == 128);
  CHECK(sft.truncate);
  CHECK(sft.schedule == "linear");
  CHECK_FALSE(std::get<SftSettings>(parse({"sft", "--config", file, "--truncate=off"}).settings).truncate);
}

TEST_CASE("errors of a configuration file name its line and key") {
  const TemporaryFolder temporary;
  const auto message = [&](const std::string& text, const std::string& command = "sft") {
    return message_of(with(command, {"--config", temporary.file("c.toml", text)}));
  };
  const std::string file = temporary.path + "/c.toml";
  CHECK(message("\nlrr = 1") == file + ":2: lrr: unknown flag; did you mean --lr?");
  CHECK(contains(message("max_length = 1"), ":1: max_length: flags are written with '-'"));
  CHECK(contains(message("rollouts = 1"), "rollouts: sft has no such flag; it belongs to ppo"));
  CHECK(contains(message("lr = \"x\""), ":1: lr: \"x\" is not allowed; expected 0 or more"));
  CHECK(contains(message("max-length = 2.5"), "max-length: 2.5 is not allowed"));
  CHECK(contains(message("truncate = 1"), "truncate: 1 is not allowed; expected on or off"));
  CHECK(contains(message("data = [1]"), "data: [1] is not allowed"));
  CHECK(contains(message("[sft]\nlr = 1"), "the table [sft] is not known"));
  CHECK(contains(message("lr = 1\nlr = 2"), ":2: the key \"lr\" appears twice"));
  CHECK(contains(message("batch-size = 4", "ppo"), "ppo has no batch size of its own"));
  CHECK(contains(message_of(with("sft", {"--config", temporary.path + "/absent.toml"})), "absent.toml"));
}

TEST_CASE("the record of a run is a configuration file that repeats it") {
  const TemporaryFolder temporary;
  const std::string run = temporary.path + "/run";
  const Invocation first = parse(least_arguments("ppo"), {"--lr", "0.001", "--seed", "18446744073709551615"});
  RunFolder({.path = run, .step = "ppo"}).write_or_check_config(first.settings_as_json, Json::object());
  const Invocation again = parse({"ppo", "--config", run + "/config.toml", "--out", "/tmp/tercet-no-run"});
  CHECK(again.settings_as_json == first.settings_as_json);
}

TEST_CASE("a resumed run has the settings of the run, and what the command line changes") {
  const TemporaryFolder temporary;
  const std::string run = temporary.path + "/run";
  const Invocation first = parse(least_arguments("sft"), {"--lr", "0.001", "--steps", "5"});
  RunFolder({.path = run, .step = "sft"}).write_or_check_config(first.settings_as_json, Json::object());
  const Invocation resumed = parse({"sft", "--resume", "--out", run, "--steps", "9"});
  const auto& settings = std::get<SftSettings>(resumed.settings);
  CHECK(settings.lr == 0.001);
  CHECK(settings.model == "m.h5");
  CHECK(settings.steps == 9);
  CHECK(settings.resume);
  CHECK(settings.out == run);
  CHECK(contains(message_of({"sft", "--resume", "--out", temporary.path + "/none"}), "no run to resume"));
  CHECK(contains(message_of({"reward", "--resume", "--out", run}), "holds a run of sft; resume it with that command"));
  CHECK(contains(message_of({"sft", "--resume"}), "--resume needs --out"));
}

TEST_CASE("--overwrite never deletes an input of the new run") {
  const TemporaryFolder temporary;
  const std::string run = temporary.path + "/run";
  CHECK(contains(message_of({"sft", "--model", run + "/model.h5", "--data", "d", "--out", run, "--overwrite"}),
                 "--model " + run + "/model.h5: --overwrite would delete it"));
  CHECK(contains(message_of({"sft", "--model", "m", "--data", run + "/x.jsonl=2", "--out", run + "/", "--overwrite"}),
                 "--overwrite would delete it"));
  CHECK(message_of({"sft", "--model", run + "2/m.h5", "--data", "d", "--out", run, "--overwrite"}) == "parsed");
}

struct BadInput {
  std::vector<std::string> arguments;
  std::string message;
};

TEST_CASE("--device cuda without a GPU ends at once and says what is missing and what to do") {
  const bool built = std::filesystem::exists(TERCET_BINARY_DIR "/libtercet_cuda.so");
  const ProgramResult result = run_program(with("sft", {"--device", "cuda"}), "", "CUDA_VISIBLE_DEVICES=''");
  CHECK(result.exit_code == 2);
  CHECK_MESSAGE(contains(result.err, built ? "--device: there is no usable GPU: "
                                           : "--device: this build has no `cuda` device: libtercet_cuda.so is missing"),
                result.err);
  CHECK_MESSAGE(contains(result.err, built ? "or use --device cpu" : "or use cpu or auto"), result.err);
  CHECK(std::ranges::count(result.err, '\n') == 1);
}

TEST_CASE("wrong arguments end with exit code 2 and one line that says what and what to do") {
  const std::vector<BadInput> table = {
      {{}, "no command is given; `tercet --help` lists them"},
      {{"train"}, "unknown command \"train\""},
      {{"sft"}, "sft needs --model, --out, --data; usage: tercet sft"},
      {{"sft", "--model", "m", "--out", "o"}, "sft needs --data"},
      {{"import"}, "import needs FOLDER, --out"},
      {{"import", "a", "b", "--out", "o"}, "unexpected argument \"b\""},
      {{"export", "m.h5"}, "export needs --out"},
      {{"export", "--out", "o"}, "export needs FILE"},
      {with("export", {"--max-shard-size", "5TB"}),
       "--max-shard-size: \"5TB\" is not allowed; expected a number of bytes"},
      {with("export", {"--max-shard-size", "0"}), "--max-shard-size: \"0\" is not allowed; expected a number of bytes"},
      {with("export", {"--dtype", "int8"}), "--dtype: \"int8\" is not allowed"},
      {{"info"}, "info needs FILE"},
      {{"init", "--out", "o"}, "init needs --config"},
      {with("sft", {"--learning_rate", "1"}), "--learning_rate: unknown flag; it is called --lr here"},
      {with("sft", {"--per-device-train-batch-size=1"}), "it is called --batch-size here"},
      {with("ppo", {"--cliprange", "1"}), "it is called --clip-range here"},
      {with("sft", {"--max_length", "8"}), "--max_length: flags are written with '-'"},
      {with("sft", {"--epoch", "2"}), "unknown flag; did you mean --epochs?"},
      {with("sft", {"--frobnicate"}), "unknown flag; see `tercet sft --help`"},
      {with("sft", {"--zero", "2"}), "--zero: unknown flag"},
      {with("sft", {"--rollouts", "2"}), "sft has no such flag; it belongs to ppo"},
      {with("sft", {"-x"}), "-x: unknown flag"},
      {with("sft", {"stray", "--keep", "1", "word"}), "unexpected argument"},
      {with("sft", {"--lr"}), "--lr"},
      {with("sft", {"--eval-data", "--lr", "1"}), "--eval-data: it has no value before --lr"},
      {with("sft", {"--lr", "abc"}), "--lr: \"abc\" is not allowed; expected 0 or more"},
      {with("sft", {"--lr", "-1"}), "--lr: -1 is not allowed; expected 0 or more"},
      {with("sft", {"--lr", "nan"}), "--lr"},
      {with("sft", {"--lr", "1", "--lr", "2"}), "--lr"},
      {with("sft", {"--batch-size", "0"}), "--batch-size: 0 is not allowed; expected a value above 0"},
      {with("sft", {"--batch-size", "1.5"}), "--batch-size: 1.5 is not allowed"},
      {with("sft", {"--batch-size", "99999999999999999999"}), "--batch-size"},
      {with("sft", {"--threads", "9999999999"}), "--threads: 9999999999 is not allowed"},
      {with("sft", {"--seed", "-1"}), "--seed: -1 is not allowed; expected a non-negative integer"},
      {with("sft", {"--adam-beta2", "1"}), "expected a value from 0 to below 1"},
      {with("sft", {"--max-length", "1"}), "expected 2 or more"},
      {with("sft", {"--schedule", "step"}), "expected cosine, linear or constant"},
      {with("sft", {"--loss-on", "x"}), "expected response or all"},
      {with("sft", {"--template", "chatml"}), "--template"},
      {with("sft", {"--dropout", "1"}), "--dropout"},
      {with("sft", {"--device", "tpu"}), "unknown device \"tpu\""},
      {with("sft", {"--dtype", "bf16"}), "--dtype: cpu does not compute in bf16; use one of: fp64, fp32"},
      {with("score", {"--dtype", "fp16"}), "cpu does not compute in fp16"},
      {with("generate", {"--dtype", "int8"}), "--dtype"},
      {with("sft", {"--deterministic", "off"}), "--deterministic: false is not allowed"},
      {with("sft", {"--steps", "5", "--epochs", "2"}), "--steps and --epochs both say when to stop"},
      {with("sft", {"--resume", "--overwrite"}), "--resume"},
      {with("sft", {"--split", "1,x"}), "--split"},
      {with("sft", {"--fields", "a"}), "--fields"},
      {with("sft", {"--data", "f=-1"}), "f=-1"},
      {with("reward", {"--turns", "all"}), "reward learns from pairs"},
      {with("reward", {"--loss", "first"}), "expected last or tokens"},
      {with("ppo", {"--batch-size", "8"}), "ppo has no batch size of its own; set --rollouts"},
      {with("ppo", {"--top-k", "8"}), "ppo samples from the whole distribution"},
      {with("ppo", {"--top-p=0.9"}), "ppo samples from the whole distribution"},
      {with("ppo", {"--dropout", "0.1"}), "ppo has no dropout"},
      {with("ppo", {"--truncate"}), "ppo drops prompts that are too long"},
      {with("ppo", {"--temperature", "0"}), "--temperature: 0 is not allowed"},
      {with("ppo", {"--minibatches", "65"}), "64 responses cannot be cut into 65 minibatches"},
      {with("ppo", {"--gae-lambda", "1.1"}), "expected a value between 0 and 1"},
      {with("ppo", {"--whiten-advantages", "maybe"}),
       "--whiten-advantages: \"maybe\" is not allowed; expected on or off"},
      {with("ppo", {"--ptx-coef", "1"}), "there is no --ptx-data"},
      {with("ppo", {"--ptx-data", "f"}), "--ptx-coef is 0"},
      {with("eval", {"--baseline", "b"}), "a comparison needs --baseline and either --reward-model or --reward-rule"},
      {{"generate", "--model", "m"}, "give one of them"},
      {with("generate", {"--data", "f"}), "give one of them"},
      {with("generate", {"--top-p", "0"}), "expected a value above 0, at most 1"},
      {with("init", {"--dtype", "int8"}), "expected fp64, fp32, bf16 or fp16"},
  };
  for (const BadInput& bad : table) {
    std::string shown;
    for (const std::string& argument : bad.arguments) shown += argument + " ";
    CAPTURE(shown);
    const ProgramResult result = run_program(bad.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.starts_with("tercet: error: "));
    CHECK_MESSAGE(contains(result.err, bad.message), result.err);
    CHECK_MESSAGE(std::ranges::count(result.err, '\n') == 1, result.err);
  }
}

}  // namespace
}  // namespace tercet
