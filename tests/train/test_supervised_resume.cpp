// SFT and reward-model runs repeat themselves, and an interrupted one ends with the bytes of one that was not.
#include <doctest/doctest.h>

#include "base/file.h"
#include "train/run_files.h"
#include "train/steps.h"

namespace tercet::testing {
namespace {

template <class Settings>
Settings small_settings(const RunFiles& files) {
  Settings s;
  s.model = files.file("model.h5");
  s.data = {files.file("data.jsonl")};
  s.eval_data = {files.file("eval.jsonl")};
  s.prompt_template = "none";
  s.steps = 5;
  s.batch_size = 2;
  s.max_length = 16;
  s.lr = 1e-2;
  s.dropout = 0.1;
  s.save_every = 2;
  s.eval_every = 2;
  s.keep = 10;
  return s;
}

template <class Settings>
void check_repeats_and_resumes(int (*run)(const Settings&, const Json&)) {
  const QuietTerminal quiet;
  const RunFiles files;
  write_fresh_model(files.file("model.h5"), byte_model(Head::language_model), 1);
  const std::string lines =
      "{\"prompt\": \"a\", \"chosen\": \"b c\", \"rejected\": \"d\"}\n"
      "{\"prompt\": \"bb\", \"chosen\": \"x\", \"rejected\": \"yz z\"}\n"
      "{\"prompt\": \"c\", \"chosen\": \"mn\", \"rejected\": \"o\"}\n";
  write_file_atomically(files.file("data.jsonl"), lines);
  write_file_atomically(files.file("eval.jsonl"), lines);
  Settings s = small_settings<Settings>(files);
  Json recorded = Json::object();
  recorded.set("steps", s.steps);
  for (const char* out : {"straight", "again", "resumed"}) {
    s.out = files.file(out);
    REQUIRE(run(s, recorded) == 0);
  }
  // Interrupted after step 2: what came later is gone, the logs run past the checkpoint, the first model is gone too.
  for (const char* name : {"checkpoints/step-00000004.h5", "checkpoints/step-00000005.h5", "model.h5"})
    REQUIRE(std::filesystem::remove(files.file(std::string("resumed/") + name)));
  REQUIRE(std::filesystem::remove(files.file("model.h5")));
  s.resume = true;
  REQUIRE(run(s, recorded) == 0);
  for (const char* name : {"model.h5", "metrics.jsonl", "samples.jsonl"}) {
    CAPTURE(name);
    const std::string straight = read_file(files.file(std::string("straight/") + name));
    CHECK(straight.size() > 100);
    CHECK((read_file(files.file(std::string("again/") + name)) == straight));
    CHECK((read_file(files.file(std::string("resumed/") + name)) == straight));
  }
  s.steps = 3;
  recorded.set("steps", s.steps);
  CHECK_THROWS_WITH(run(s, recorded), doctest::Contains("has done 5 steps, more than the 3 asked for"));
}

}  // namespace

TEST_CASE("an sft run repeats itself and, resumed, equals the uninterrupted one byte for byte") {
  check_repeats_and_resumes<SftSettings>(run_sft);
}

TEST_CASE("a reward run repeats itself and, resumed, equals the uninterrupted one byte for byte") {
  check_repeats_and_resumes<RewardSettings>(run_reward);
}

}  // namespace tercet::testing
