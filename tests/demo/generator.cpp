#include "demo/generator.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "demo/checker.h"

namespace tercet::demo {
namespace {

std::string write_into(const std::string& name, uint64_t seed) {
  const std::string folder = std::string(TERCET_BINARY_DIR) + "/" + name;
  mkdir(folder.c_str(), 0777);
  Sizes sizes;
  sizes.pretrain = 300;
  sizes.sft = 4000;
  sizes.pairs = 1000;
  sizes.prompts = 500;
  write_dialogues(folder, seed, sizes, Mixture{});
  return folder;
}

std::vector<Json> records_of(const std::string& path) {
  std::vector<Json> records;
  const std::string text = read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    records.push_back(parse_json(text.substr(begin, end - begin), path));
    begin = end + 1;
  }
  return records;
}

const std::string& field(const Json& record, const char* name) { return record.at(name).as_string(); }

TEST_CASE("equal seeds give equal files and other seeds give others") {
  const std::string a = write_into("demo-a", 1), b = write_into("demo-b", 1), c = write_into("demo-c", 2);
  for (const char* name : {"/pretrain.jsonl", "/sft.jsonl", "/pairs.jsonl", "/prompts.jsonl", "/eval_sft.jsonl",
                           "/eval_pairs.jsonl", "/eval_prompts.jsonl"}) {
    CAPTURE(name);
    CHECK(hash_file(a + name) == hash_file(b + name));
    CHECK(hash_file(a + name) != hash_file(c + name));
  }
}

TEST_CASE("no prompt occurs twice, and none that is held out occurs in the pretraining text") {
  const std::string folder = write_into("demo-a", 1);
  std::set<std::string> prompts;
  size_t records = 0;
  for (const char* name :
       {"/eval_sft.jsonl", "/eval_pairs.jsonl", "/eval_prompts.jsonl", "/sft.jsonl", "/pairs.jsonl", "/prompts.jsonl"})
    for (const Json& record : records_of(folder + name)) {
      prompts.insert(field(record, "prompt"));
      ++records;
    }
  CHECK(prompts.size() == records);
  std::string pretraining;
  for (const Json& record : records_of(folder + "/pretrain.jsonl")) pretraining += field(record, "text") + '\n';
  for (const char* name : {"/eval_sft.jsonl", "/eval_pairs.jsonl", "/eval_prompts.jsonl"})
    for (const Json& held_out : records_of(folder + name))
      CHECK(pretraining.find(field(held_out, "prompt")) == std::string::npos);
}

TEST_CASE("demonstrations are 60 % correct and 40 % courteous, independently") {
  const auto records = records_of(write_into("demo-a", 1) + "/sft.jsonl");
  const double n = static_cast<double>(records.size());
  double correct = 0, courteous = 0, both = 0;
  for (const Json& record : records) {
    const Verdict verdict = check(field(record, "prompt"), field(record, "response"));
    correct += verdict.correct;
    courteous += verdict.courteous;
    both += verdict.correct && verdict.courteous;
  }
  // Four standard deviations of a fraction of 4,000 draws.
  CHECK(std::abs(correct / n - 0.6) < 0.031);
  CHECK(std::abs(courteous / n - 0.4) < 0.031);
  CHECK(std::abs(both / n - 0.24) < 0.027);
}

TEST_CASE("the preferred answer has the higher utility and is the shorter one in half of the pairs") {
  const auto records = records_of(write_into("demo-a", 1) + "/pairs.jsonl");
  int shorter = 0;
  for (const Json& record : records) {
    const Verdict chosen = check(field(record, "prompt"), field(record, "chosen"));
    const Verdict rejected = check(field(record, "prompt"), field(record, "rejected"));
    CHECK(2 * chosen.correct + chosen.courteous > 2 * rejected.correct + rejected.courteous);
    const int length = length_in_words(field(record, "chosen")), other = length_in_words(field(record, "rejected"));
    CHECK(length != other);
    shorter += length < other;
  }
  CHECK(shorter == 500);
}

}  // namespace
}  // namespace tercet::demo
