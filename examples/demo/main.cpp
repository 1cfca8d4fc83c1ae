// demo_dialogues: writes the demo's dialogues and tokenizer, and checks answers to them.
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/records.h"
#include "demo/answers.h"
#include "demo/generator.h"
#include "text/bpe_trainer.h"

namespace tercet::demo {

namespace {

constexpr const char* usage = R"(usage:
  demo_dialogues --out DIR [--seed N] [--pretrain N] [--sft N] [--pairs N] [--prompts N] [--eval N]
                 [--correct P] [--courteous P]
      writes the demo's dialogues into DIR: so many records per file, demonstrations correct and courteous with
      probability P (default 0.6 and 0.4)
  demo_dialogues --check FILE.jsonl
      reads {"prompt","response"} records and prints {"n","correct","courteous"}, the last two as fractions
  demo_dialogues --train-tokenizer FILE.jsonl --out DIR [--entries N]
      trains a byte-level BPE of N entries (default 1024) on {"text"} records and writes vocab.json and merges.txt
)";

void make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail_errno("cannot make the folder", path);
}

// The command line as flag -> value.
class Flags {
 public:
  Flags(int count, char** words) {
    for (int i = 1; i < count; i += 2) {
      const std::string name = words[i];
      if (!name.starts_with("--") || i + 1 == count) fail_input("cannot read the arguments", name, usage);
      values_[name.substr(2)] = words[i + 1];
    }
  }

  bool has(const std::string& name) const { return values_.contains(name); }

  std::string text(const std::string& name) {
    const auto found = values_.find(name);
    if (found == values_.end()) fail_input("a flag is missing", "--" + name, usage);
    std::string value = found->second;
    values_.erase(found);
    return value;
  }

  template <class Number>
  Number number(const std::string& name, Number fallback) {
    if (!has(name)) return fallback;
    const std::string value = text(name);
    Number result{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc{} || end != value.data() + value.size() || result < Number{})
      fail_input(fmt::format("\"{}\" is not a number", value), "--" + name, "give a number of at least 0");
    return result;
  }

  void refuse_others() const {
    if (!values_.empty()) fail_input("unknown flag", "--" + values_.begin()->first, usage);
  }

 private:
  std::map<std::string, std::string> values_;
};

void run_check(Flags& flags) {
  const std::string path = flags.text("check");
  flags.refuse_others();
  const std::vector<Answer> answers = read_answers(path);
  const Rates rates = checked_rates(answers);
  Json result;
  result.set("n", static_cast<int64_t>(answers.size())).set("correct", rates.correct).set("courteous", rates.courteous);
  fmt::print("{}\n", result.dump());
}

void run_train_tokenizer(Flags& flags) {
  const std::string path = flags.text("train-tokenizer"), folder = flags.text("out");
  const int entries = flags.number("entries", 1024);
  flags.refuse_others();
  BpeTrainer trainer;
  for_each_json_line(path, [&](const Json& record, const std::string&) { trainer.add(record.at("text").as_string()); });
  const BpeFiles files = trainer.train(entries);
  make_folder(folder);
  write_file_atomically(folder + "/vocab.json", files.vocab_json);
  write_file_atomically(folder + "/merges.txt", files.merges_txt);
}

void run_generate(Flags& flags) {
  const std::string folder = flags.text("out");
  Sizes sizes;
  Mixture mixture;
  const uint64_t seed = flags.number("seed", uint64_t{1});
  sizes.pretrain = flags.number("pretrain", sizes.pretrain);
  sizes.sft = flags.number("sft", sizes.sft);
  sizes.pairs = flags.number("pairs", sizes.pairs);
  sizes.prompts = flags.number("prompts", sizes.prompts);
  sizes.eval = flags.number("eval", sizes.eval);
  mixture.correct = flags.number("correct", mixture.correct);
  mixture.courteous = flags.number("courteous", mixture.courteous);
  flags.refuse_others();
  make_folder(folder);
  write_dialogues(folder, seed, sizes, mixture);
}

int run(int count, char** words) {
  try {
    if (count < 2 || std::string_view(words[1]) == "--help") {
      fmt::print("{}", usage);
      return count < 2 ? 2 : 0;
    }
    Flags flags(count, words);
    if (flags.has("check"))
      run_check(flags);
    else if (flags.has("train-tokenizer"))
      run_train_tokenizer(flags);
    else
      run_generate(flags);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "demo_dialogues: {}\n", error.what());
    return error.exit_code();
  }
}

}  // namespace

}  // namespace tercet::demo

int main(int count, char** words) { return tercet::demo::run(count, words); }
