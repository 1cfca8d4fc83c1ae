// The commands that do not train, as a user runs them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "app/program.h"
#include "base/error.h"

namespace tercet {
namespace {

void check_failure(const ProgramResult& result, const std::string& message) {
  CHECK(result.exit_code == 2);
  CHECK_MESSAGE(contains(result.err, message), result.err);
}

Json ids_record(const std::vector<int64_t>& ids) {
  Json list = Json::array(), record = Json::object();
  for (const int64_t id : ids) list.push_back(id);
  return record.set("ids", std::move(list));
}

TEST_CASE("init makes the same model from the same seed and another from another") {
  const TemporaryFolder first, second;
  const std::string a = make_model(first, "7"), b = make_model(second, "7"), c = make_model(first, "8");
  const auto weights = [](const std::string& model) {
    const std::string record = R"({"ids": [2, 40, 50, 60]})";
    const TemporaryFolder folder;
    const ProgramResult result = run_program({"score", "--model", model, "--data", folder.file("r.jsonl", record)});
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.out;
  };
  CHECK(weights(a) == weights(b));
  CHECK(weights(a) != weights(c));
}

TEST_CASE("info shows configuration, tensors and provenance, as JSON too") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const ProgramResult table = run_program({"info", model});
  CHECK(table.exit_code == 0);
  CHECK(contains(table.out, "model.decoder.layers.1.fc2.weight"));
  CHECK(contains(table.out, "language model"));
  const ProgramResult result = run_program({"info", model, "--json", "--verify"});
  REQUIRE(result.exit_code == 0);
  const Json info = parse_json(result.out, "stdout");
  CHECK(info.at("kind") == Json("language model"));
  CHECK(info.at("dtype") == Json("fp32"));
  CHECK(info.at("verified") == Json(true));
  CHECK(info.at("config").at("hidden_size") == Json(16));
  CHECK(info.at("provenance").at("command") == Json("init"));
  int64_t elements = 0;
  for (const Json& tensor : info.at("tensors").as_array()) {
    int64_t product = 1;
    for (const Json& size : tensor.at("shape").as_array()) product *= size.as_int();
    elements += product;
  }
  CHECK(info.at("parameters") == Json(elements));
}

TEST_CASE("files that are no models are refused by every command that reads one") {
  const TemporaryFolder folder;
  const std::string text = folder.file("text.h5", "not a model"), data = folder.file("d.jsonl", "{\"text\": \"a\"}\n");
  for (const std::string& file : {text, folder.path + "/absent.h5", folder.path}) {
    check_failure(run_program({"info", file}), file);
    check_failure(run_program({"tokenize", "--model", file}), file);
    check_failure(run_program({"score", "--model", file, "--data", data}), file);
    check_failure(run_program({"eval", "--model", file, "--data", data}), file);
    check_failure(run_program({"generate", "--model", file, "--prompt", "a"}), file);
  }
}

TEST_CASE("more than one launched process is refused, since each would do the whole run") {
  const ProgramResult result = run_program({"info", "x.h5"}, "", "OMPI_COMM_WORLD_SIZE=2");
  CHECK(result.exit_code == 2);
  CHECK_MESSAGE(contains(result.err, "2 processes were launched, but this build trains with one"), result.err);
  CHECK(contains(run_program({"info", "x.h5"}, "", "OMPI_COMM_WORLD_SIZE=1").err, "x.h5"));
}

TEST_CASE("a model that does not fit the file size limit ends with a message and leaves no file") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string out = folder.path + "/limited.h5";
  const std::string config = folder.path + "/config.json";
  const ProgramResult result =
      run_program({"init", "--config", config, "--tokenizer", kTokenizerFolder, "--out", out}, "", "ulimit -f 8;");
  CHECK(result.exit_code == 1);
  CHECK_MESSAGE(contains(result.err, "tercet: error: "), result.err);
  CHECK_FALSE(std::filesystem::exists(out));
}

#ifndef __SANITIZE_ADDRESS__  // which reserves more address space than the limit
TEST_CASE("a run that does not fit into memory shows its plan and ends with exit code 1") {
  const TemporaryFolder temporary;
  const std::string model = make_model(temporary);
  const std::string data = temporary.file("d.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
  const ProgramResult result =
      run_program({"sft", "--model", model, "--data", data, "--max-length", "100", "--micro-batch-tokens", "20000000",
                   "--device", "cpu", "--out", temporary.path + "/run"},
                  "", "ulimit -v 4000000;");
  CHECK(result.exit_code == 1);
  CHECK_MESSAGE(contains(result.err, "not enough memory for"), result.err);
  CHECK_MESSAGE(contains(result.err, "--micro-batch-tokens"), result.err);
  CHECK_MESSAGE(result.err.find("activations") < result.err.find("not enough memory for"), result.err);
}
#endif

TEST_CASE("init and import refuse what does not fit") {
  const TemporaryFolder folder;
  const std::string out = folder.path + "/o.h5";
  check_failure(run_program({"init", "--config", "opt-1b", "--tokenizer", kTokenizerFolder, "--out", out}), "opt-1.3b");
  check_failure(run_program({"init", "--config", folder.file("c.json", R"({"vocab_size": 100})"), "--tokenizer",
                             kTokenizerFolder, "--out", out}),
                "vocabulary");
  check_failure(run_program({"init", "--config", "opt-125m", "--tokenizer", folder.path, "--out", out}), folder.path);
  check_failure(run_program({"import", folder.path, "--out", out}), "config.json");
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("import keeps or converts the type of the weights") {
  const TemporaryFolder folder;
  const std::string source = TERCET_SOURCE_DIR "/tests/golden/import/bin-fp16-like-125m";
  const std::string out = folder.path + "/o.h5";
  const auto dtype = [&] {
    return parse_json(run_program({"info", out, "--json"}).out, "stdout").at("dtype").as_string();
  };
  REQUIRE(run_program({"import", source, "--out", out}).exit_code == 0);
  CHECK(dtype() == "fp16");
  REQUIRE(run_program({"import", source, "--out", out, "--dtype", "fp32"}).exit_code == 0);
  CHECK(dtype() == "fp32");
}

TEST_CASE("tokenize and its inverse pass any text through") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string text =
      "{\"text\":\"\\n\\nHuman: on a tin?\\n\\nAssistant: then.\"}\n{\"text\":\"\"}\n{\"text\":\"caf\u00e9 </s>\"}\n";
  const ProgramResult ids = run_program({"tokenize", "--model", model}, text);
  REQUIRE_MESSAGE(ids.exit_code == 0, ids.err);
  const std::vector<Json> lines = json_lines(ids.out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].at("ids").dump() == "[2]");
  CHECK(lines[0].at("ids").as_array().front() == Json(2));
  const ProgramResult back = run_program({"tokenize", "--model", model, "--decode"}, ids.out);
  CHECK(back.out == text);
  const ProgramResult bare = run_program({"tokenize", "--model", model, "--no-bos"}, "{\"text\":\"\"}\n");
  CHECK(bare.out == "{\"ids\":[]}\n");
}

TEST_CASE("tokenize names the line that it cannot read") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  check_failure(run_program({"tokenize", "--model", model}, "{\"text\":\"a\"}\n{"), "stdin:2");
  check_failure(run_program({"tokenize", "--model", model}, "{\"txt\":\"a\"}\n"), "stdin:1");
  check_failure(run_program({"tokenize", "--model", model}, "{\"text\":1}\n"), "stdin:1");
  check_failure(run_program({"tokenize", "--model", model, "--decode"}, "{\"ids\":[2,272]}\n"), "272 is not one of");
  check_failure(run_program({"tokenize", "--model", model, "--decode"}, "{\"ids\":[-1]}\n"), "-1 is not one of");
}

TEST_CASE("score of a language model gives one log-probability per predicted token, in the order of the records") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.file("d.jsonl", "{\"text\": \"the other\"}\n" + ids_record({2, 40, 41, 2}).dump() +
                                                      "\n{\"ids\": [2]}\n" + R"({"prompt": "a", "response": "b"})" +
                                                      "\n" + R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  const ProgramResult result = run_program({"score", "--model", model, "--data", data});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  CHECK(contains(result.err, "memory plan"));
  const std::vector<Json> lines = json_lines(result.out);
  REQUIRE(lines.size() == 5);
  for (size_t i = 0; i < 4; ++i)
    CHECK(lines[i].at("logprobs").as_array().size() + 1 == lines[i].at("ids").as_array().size());
  CHECK(lines[0].at("ids").as_array()[0] == Json(2));
  CHECK(lines[0].at("terminated") == Json(false));
  CHECK(lines[1].find("terminated") == nullptr);
  CHECK(lines[3].at("ids").as_array().back() == Json(2));
  CHECK(lines[4].at("chosen").at("ids") == lines[3].at("ids"));
  for (const Json& value : lines[1].at("logprobs").as_array()) CHECK(value.as_double() < 0);
}

TEST_CASE("scores do not depend on how the records are cut into micro-batches") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  std::string records;
  for (int64_t i = 0; i < 12; ++i) {
    std::vector<int64_t> ids = {2};
    for (int64_t j = 0; j < 1 + 5 * (i % 4); ++j) ids.push_back(4 + (i * 37 + j * 11) % 260);
    records += ids_record(ids).dump() + "\n";
  }
  const std::string data = folder.file("d.jsonl", records);
  const auto score = [&](const std::string& tokens) {
    return json_lines(
        run_program({"score", "--model", model, "--data", data, "--dtype", "fp64", "--micro-batch-tokens", tokens})
            .out);
  };
  const std::vector<Json> small = score("17"), large = score("4096");
  REQUIRE(small.size() == 12);
  REQUIRE(large.size() == 12);
  for (size_t i = 0; i < 12; ++i) {
    const auto &a = small[i].at("logprobs").as_array(), &b = large[i].at("logprobs").as_array();
    REQUIRE(a.size() == b.size());
    // fp64: only the order of sums inside matrix products may differ.
    for (size_t j = 0; j < a.size(); ++j) CHECK(std::abs(a[j].as_double() - b[j].as_double()) < 1e-11);
  }
}

TEST_CASE("eval's loss is the mean of score's log-probabilities") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.file(
      "d.jsonl", "{\"prompt\": \"the\", \"response\": \"other hen\"}\n{\"prompt\": \"on\", \"response\": \"a tin\"}\n");
  double sum = 0, count = 0;
  for (const Json& line : json_lines(run_program({"score", "--model", model, "--data", data, "--dtype", "fp64"}).out))
    for (const Json& value : line.at("logprobs").as_array()) {
      sum -= value.as_double();
      ++count;
    }
  const ProgramResult result =
      run_program({"eval", "--model", model, "--data", data, "--loss-on", "all", "--dtype", "fp64"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json figures = parse_json(result.out, "stdout");
  CHECK(figures.at("tokens").as_double() == count);
  CHECK(figures.at("loss").as_double() == doctest::Approx(sum / count).epsilon(1e-12));
  CHECK(figures.at("perplexity").as_double() == doctest::Approx(std::exp(sum / count)).epsilon(1e-12));
}

TEST_CASE("score and eval of a reward model") {
  const TemporaryFolder folder;
  const std::string model = folder.path + "/reward.h5";
  REQUIRE(run_program({"import", TERCET_SOURCE_DIR "/tests/golden/import/safetensors-fp32-reward", "--out", model})
              .exit_code == 0);
  const std::string pairs = folder.file("p.jsonl",
                                        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cd\"}\n{\"prompt\": "
                                        "\"e\", \"chosen\": \"fg\", \"rejected\": \"h\"}\n");
  const ProgramResult scores = run_program({"score", "--model", model, "--data", pairs, "--template", "none"});
  REQUIRE_MESSAGE(scores.exit_code == 0, scores.err);
  const std::vector<Json> lines = json_lines(scores.out);
  REQUIRE(lines.size() == 2);
  int64_t right = 0;
  for (const Json& line : lines) {
    const double margin = line.at("chosen").as_double() - line.at("rejected").as_double();
    CHECK(line.at("margin").as_double() == margin);
    CHECK(line.at("margin_normalized").is_null());
    right += margin > 0 ? 1 : 0;
  }
  const ProgramResult result = run_program({"eval", "--model", model, "--data", pairs, "--template", "none"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json figures = parse_json(result.out, "stdout");
  CHECK(figures.at("pairs") == Json(2));
  CHECK(figures.at("accuracy").as_double() == static_cast<double>(right) / 2);
  CHECK(figures.at("accuracy_interval").as_array().size() == 2);
  CHECK(figures.at("shorter_wins") == Json(0.5));
  const std::string ids = folder.file("i.jsonl", "{\"ids\": [2, 40]}\n");
  const Json reward = json_lines(run_program({"score", "--model", model, "--data", ids}).out).at(0);
  CHECK(reward.at("reward").is_number());
  CHECK(reward.at("terminated") == Json(false));
  check_failure(run_program({"generate", "--model", model, "--prompt", "a"}), "a reward model cannot answer prompts");
  check_failure(run_program({"score", "--model", model, "--data", folder.file("e.jsonl", "{\"ids\": []}\n")}),
                "e.jsonl:1");
  check_failure(run_program({"eval", "--model", model, "--data", pairs, "--loss-on", "all"}), "evaluated on pairs");
}

TEST_CASE("a model compared with itself wins half of the time, with every pair a tie") {
  const TemporaryFolder folder;
  const std::string model = folder.path + "/lm.h5", reward = folder.path + "/reward.h5";
  const std::string golden = TERCET_SOURCE_DIR "/tests/golden/import/";
  REQUIRE(run_program({"import", golden + "safetensors-fp32", "--out", model}).exit_code == 0);
  REQUIRE(run_program({"import", golden + "safetensors-fp32-reward", "--out", reward}).exit_code == 0);
  const std::string data = folder.file("d.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"the\"}\n");
  const ProgramResult result = run_program({"eval", "--model", model, "--baseline", model, "--reward-model", reward,
                                            "--data", data, "--template", "none", "--max-new-tokens", "6"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json figures = parse_json(result.out, "stdout");
  CHECK(figures.at("win_rate") == Json(0.5));
  CHECK(figures.at("ties") == Json(2));
  CHECK(figures.at("model") == figures.at("baseline"));
  check_failure(run_program({"eval", "--model", model, "--baseline", reward, "--reward-model", reward, "--data", data}),
                "a reward model cannot answer prompts");
  check_failure(run_program({"eval", "--model", model, "--baseline", model, "--reward-model", model, "--data", data}),
                "a language model cannot score");
}

TEST_CASE("generate repeats itself under one seed, and its log-probabilities are those of score") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const auto generate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate", "--model", model, "--max-new-tokens", "12", "--dtype", "fp64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run_program(arguments);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return json_lines(result.out);
  };
  const std::vector<std::string> prompt = {"--prompt", "the tin", "--template", "none", "--seed", "5"};
  const Json first = generate(prompt).at(0);
  CHECK(generate(prompt).at(0) == first);
  CHECK(first.at("prompt") == Json("the tin"));
  const std::string finish = first.at("finish").as_string();
  CHECK((finish == "end" || finish == "length"));
  CHECK(first.at("logprobs").as_array().size() <= 12);
  CHECK(generate({"--prompt", "a"}).at(0).at("prompt") == Json("\n\nHuman: a\n\nAssistant:"));

  const std::string data =
      folder.file("d.jsonl", "{\"prompt\": \"on\"}\n{\"prompt\": \"tin\"}\n{\"prompt\": \"on\"}\n");
  CHECK(generate({"--data", data, "--temperature", "0"}).size() == 2);
  CHECK(generate({"--data", data, "--top-k", "1"}) == generate({"--data", data, "--top-k", "1", "--seed", "9"}));
}

TEST_CASE("generate refuses what does not fit the model's positions") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  check_failure(run_program({"generate", "--model", model, "--prompt", "a", "--max-new-tokens", "128"}),
                "exceeds the model's 128 positions");
  check_failure(run_program({"generate", "--model", model, "--prompt", "a", "--max-new-tokens", "4", "--stop", ""}),
                "--stop");
}

TEST_CASE("generate drops and counts the prompts of a file that are longer than asked for") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.file(
      "data.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"" + std::string(200, 'x') + "\"}\n{\"prompt\": \"b\"}\n");
  const std::vector<std::string> arguments = {"generate",         "--model", model,        "--data", data,
                                              "--max-new-tokens", "4",       "--template", "none"};
  check_failure(run_program(arguments), "exceeds the model's 128 positions");
  auto limited = arguments;
  limited.insert(limited.end(), {"--max-prompt-tokens", "100"});
  const ProgramResult result = run_program(limited);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(json_lines(result.out).size() == 2);
  CHECK_MESSAGE(contains(result.err, "1 dropped: 1 prompt too long"), result.err);
}

TEST_CASE("bad records are named with file and line") {
  const TemporaryFolder folder;
  const std::string model = make_model(folder);
  const auto score = [&](const std::string& records) {
    return run_program({"score", "--model", model, "--data", folder.file("bad.jsonl", records)});
  };
  check_failure(score("{\"text\": \"a\"}\n{\"text\": "), "bad.jsonl:2");
  check_failure(score("{\"text\": \"a\"}\n{\"tex\": \"a\"}\n"), "bad.jsonl:2");
  check_failure(score("{\"ids\": [2, 272]}\n"), "bad.jsonl:1: the id 272 is not one of the model's 272");
  check_failure(score("{\"ids\": [2, -5]}\n"), "bad.jsonl:1");
  check_failure(score(""), "bad.jsonl");
  check_failure(run_program({"score", "--model", model, "--data", folder.path + "/absent.jsonl"}), "absent.jsonl");
  check_failure(run_program({"eval", "--model", model, "--max-length", "200", "--data", folder.path + "/bad.jsonl"}),
                "--max-length: 200 exceeds the 128 positions");
}

}  // namespace
}  // namespace tercet
