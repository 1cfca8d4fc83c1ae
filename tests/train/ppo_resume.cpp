// Repeating and resuming: the same bytes, interrupted or not.
#include <filesystem>

#include "base/file.h"
#include "ppo_world.h"
#include "store/hdf5_file.h"
#include "text/small_tokenizer.h"
#include "train/run_files.h"
#include "train/steps.h"

namespace tercet::ppo_test {
namespace {

using testing::byte_model;
using testing::QuietTerminal;
using testing::RunFiles;
using testing::write_fresh_model;

namespace fs = std::filesystem;

WorldOptions options_with_everything() {
  WorldOptions options;
  PpoSettings& s = options.settings = small_settings();
  s.minibatches = 3;
  s.schedule = "linear";
  s.adaptive_kl_target = 1;
  s.kl_horizon = 50;
  s.ema_decay = 0.9;
  s.ptx_coef = 0.5;
  Sequence block;
  block.ids = {2, 4, 5, 6, 7, 2};
  block.prompt_length = 1;
  options.data.ptx_blocks = {block, block, block};
  options.data.prompts = prompts_of({{2}, {2, 5}, {2, 4, 6, 8}, {2, 11, 3}, {2, 9}});
  options.reward = [](const ScoredResponse& r) { return static_cast<double>(r.response.size()) - 3; };
  options.iterations = 5;
  return options;
}

PpoSettings run_settings(const RunFiles& folder, const std::string& out) {
  write_file_atomically(folder.file("data.jsonl"),
                        "{\"prompt\": \"a\"}\n{\"prompt\": \"bb\"}\n{\"prompt\": \"c c\"}\n{\"prompt\": \"a\"}\n");
  write_file_atomically(folder.file("eval.jsonl"), "{\"prompt\": \"x\"}\n{\"prompt\": \"yy\"}\n");
  PpoSettings s = small_settings();
  s.normalize_reward = true;
  s.actor = folder.file("actor.h5");
  s.reward_model = folder.file("reward.h5");
  s.data = {folder.file("data.jsonl")};
  s.eval_data = {folder.file("eval.jsonl")};
  s.prompt_template = "none";
  s.out = folder.file(out);
  s.steps = 4;
  s.max_prompt_tokens = 8;
  s.ema_decay = 0.5;
  s.save_every = 1;
  s.keep = 10;
  s.eval_every = 2;
  return s;
}

Json recorded(const PpoSettings& s) {
  Json json = Json::object();
  json.set("steps", s.steps).set("seed", static_cast<int64_t>(s.seed));
  return json;
}

}  // namespace

TEST_CASE("A trainer saved and loaded goes on bit for bit") {
  const RunFiles folder;
  World straight(options_with_everything());
  std::vector<Json> metrics;
  for (int64_t step = 1; step <= 5; ++step) metrics.push_back(straight.trainer().iteration(step));
  for (const int64_t stop : {1, 3}) {
    const std::string path = folder.file("checkpoint.h5");
    Json state = Json::object();
    {
      World first(options_with_everything());
      first.run(1, stop);
      Hdf5Writer file(path, first.trainer().checkpoint_bytes());
      first.trainer().save(file, state);
      file.finish();
    }
    World second(options_with_everything());
    second.trainer().load(Hdf5Reader(path), state);
    for (int64_t step = stop + 1; step <= 5; ++step)
      CHECK(second.trainer().iteration(step).dump() == metrics[static_cast<size_t>(step - 1)].dump());
    CHECK(all_weights(second.stream(), second.actor()) == all_weights(straight.stream(), straight.actor()));
    CHECK(all_weights(second.stream(), second.critic()) == all_weights(straight.stream(), straight.critic()));
    const std::string norm = "model.decoder.final_layer_norm.bias";
    CHECK(to_host(second.stream(), second.trainer().ema()->weight(norm)) ==
          to_host(straight.stream(), straight.trainer().ema()->weight(norm)));
  }
}

TEST_CASE("A ppo run repeats itself and, resumed, equals the uninterrupted one byte for byte") {
  const QuietTerminal quiet;
  const RunFiles folder;
  write_fresh_model(folder.file("actor.h5"), byte_model(Head::language_model), 1);
  write_fresh_model(folder.file("reward.h5"), byte_model(Head::scalar), 2);
  PpoSettings s = run_settings(folder, "straight");
  CHECK(run_ppo(s, recorded(s)) == 0);
  s.out = folder.file("again");
  CHECK(run_ppo(s, recorded(s)) == 0);
  // The run that is interrupted: its later checkpoints are gone, its logs run past the one that is left.
  s.out = folder.file("resumed");
  CHECK(run_ppo(s, recorded(s)) == 0);
  for (const char* name : {"checkpoints/step-00000003.h5", "checkpoints/step-00000004.h5", "model.h5"})
    CHECK(fs::remove(folder.file(std::string("resumed/") + name)));
  // So are the models that it started from: the run has its own copies.
  for (const char* name : {"actor.h5", "reward.h5"}) CHECK(fs::remove(folder.file(name)));
  s.resume = true;
  CHECK(run_ppo(s, recorded(s)) == 0);
  for (const char* name : {"critic.h5", "ema.h5", "best.h5", "metrics.jsonl", "samples.jsonl", "model.h5"}) {
    CAPTURE(name);
    const std::string straight = read_file(folder.file(std::string("straight/") + name));
    CHECK(straight.size() > 100);
    CHECK((read_file(folder.file(std::string("again/") + name)) == straight));
    CHECK((read_file(folder.file(std::string("resumed/") + name)) == straight));
  }
  const ModelInfo critic = read_model_info(folder.file("straight/critic.h5"));
  CHECK(critic.head == Head::scalar);
  CHECK(critic.affine->mean == 0.1);
  CHECK(read_model_info(folder.file("straight/model.h5")).head == Head::language_model);
}

TEST_CASE("A ppo run refuses models that do not fit each other") {
  const QuietTerminal quiet;
  const RunFiles folder;
  write_fresh_model(folder.file("actor.h5"), byte_model(Head::language_model), 1);
  write_fresh_model(folder.file("reward.h5"), byte_model(Head::scalar), 2);
  const auto refused = [&](const auto& change, const char* message) {
    PpoSettings s = run_settings(folder, "refused");
    change(s);
    CHECK_THROWS_WITH_AS(run_ppo(s, recorded(s)), doctest::Contains(message), Error);
    CHECK_FALSE(fs::exists(folder.file("refused/model.h5")));
    fs::remove_all(folder.file("refused"));
  };
  refused([](PpoSettings& s) { s.actor = s.reward_model; }, "a language model is needed");
  refused([](PpoSettings& s) { s.reward_model = s.actor; }, "a reward model is needed");
  refused([](PpoSettings& s) { s.max_new_tokens = 60; }, "--max-new-tokens");
  refused([](PpoSettings& s) { s.micro_batch_tokens = 10; }, "--micro-batch-tokens");
  ModelInfo other = byte_model(Head::scalar);
  const Tokenizer merged = testing::small_tokenizer({{"a", "b"}});
  other.config.vocab_size = merged.size();
  other.vocab_json = merged.vocab_json();
  other.merges_txt = merged.merges_txt();
  write_fresh_model(folder.file("other.h5"), other, 3);
  refused([&](PpoSettings& s) { s.reward_model = folder.file("other.h5"); }, "tokenizers");
  other = byte_model(Head::scalar);
  other.affine.reset();
  write_fresh_model(folder.file("raw.h5"), other, 3);
  refused([&](PpoSettings& s) { s.reward_model = folder.file("raw.h5"); }, "--normalize-reward off");
  write_file_atomically(folder.file("text.jsonl"), "{\"text\": \"a\"}\n");
  refused([&](PpoSettings& s) { s.data = {folder.file("text.jsonl")}; }, "prompt");
}

}  // namespace tercet::ppo_test
