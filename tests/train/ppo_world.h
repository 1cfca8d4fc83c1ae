// A small PPO run in memory: tiny OPT models, prompts and a reward in code, through the PpoTrainer that ships.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <vector>

#include "recording_stream.h"
#include "train/ppo_trainer.h"

namespace tercet::ppo_test {

inline OptConfig tiny_config(int64_t vocabulary, int64_t hidden = 16, int64_t layers = 1, int64_t positions = 24) {
  OptConfig config;
  config.vocab_size = vocabulary;
  config.hidden_size = hidden;
  config.word_embed_proj_dim = hidden;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 2;
  config.ffn_dim = 4 * hidden;
  config.max_position_embeddings = positions;
  config.init_std = 0.2;
  return config;
}

inline std::vector<Prompt> prompts_of(const std::vector<std::vector<int32_t>>& ids) {
  std::vector<Prompt> prompts;
  for (const auto& one : ids) {
    Prompt prompt;
    prompt.ids = one;
    prompt.record = prompt.sample = prompts.size();
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

struct WorldOptions {
  PpoSettings settings;
  OptConfig config = tiny_config(12);
  DType dtype = DType::f32;
  int64_t capacity_tokens = 512;
  int64_t head_chunk_rows = 64;
  int64_t iterations = 4;
  uint64_t init_seed = 1;
  PpoData data;
  std::function<double(const ScoredResponse&)> reward = [](const ScoredResponse&) { return 0.0; };
  // The reward is a model: the critic's start.
  bool reward_is_critic_start = false;
  ScoreAffine affine;
  // Changes the actor's weights before the reference is copied from it.
  std::function<void(Stream&, ModelInstance&)> prepare_actor;
  // Where the ranges that a profiler would show are recorded, or nullptr.
  test::ProfileRanges* profile = nullptr;
};

// Settings that most cases share.
inline PpoSettings small_settings() {
  PpoSettings settings;
  settings.rollouts = 8;
  settings.max_prompt_tokens = 6;
  settings.max_new_tokens = 8;
  settings.actor_lr = 1e-3;
  settings.critic_lr = 1e-3;
  settings.schedule = "constant";
  settings.warmup = 0;
  settings.normalize_reward = false;
  return settings;
}

inline void copy_weights(Stream& stream, UnitSet& from, UnitSet& to) {
  for (int u = 0; u < from.count(); ++u)
    for (int s = 0; s < static_cast<int>(from.spec(u).segments.size()); ++s) {
      const Tensor source = from.buffers(u, s).weights;
      stream.copy_on_device(to.buffers(u, s).weights.data, source.data,
                            static_cast<size_t>(source.elements()) * dtype_size(source.dtype));
    }
  stream.synchronize();
}

inline std::vector<double> all_weights(Stream& stream, ModelInstance& model) {
  std::vector<double> all;
  for (int u = 0; u < model.units().count(); ++u)
    for (int s = 0; s < static_cast<int>(model.units().spec(u).segments.size()); ++s) {
      const std::vector<double> part = to_host(stream, model.units().buffers(u, s).weights);
      all.insert(all.end(), part.begin(), part.end());
    }
  return all;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

class World {
 public:
  explicit World(WorldOptions options) : options_(std::move(options)) {
    device_ = open_device("cpu");
    stream_ = device_->create_stream();
    if (options_.profile != nullptr)
      stream_ = std::make_unique<test::RecordingStream>(std::move(stream_), *options_.profile);
    communicator_ = single_communicator();
    const auto actor = trained(instance("actor", Head::language_model), Phase::train_actor);
    const auto critic = trained(instance("critic", Head::scalar), Phase::train_critic);
    const auto reference = instance("reference", Head::language_model);
    const auto reward = instance("reward", Head::scalar);
    const auto generator = generator_options("generator", Phase::rollout);
    const auto reference_generator = generator_options("reference_generator", Phase::evaluate);
    MemoryPlan plan;
    plan.add(ModelInstance::footprint(actor));
    plan.add(ModelInstance::footprint(critic));
    plan.add(ModelInstance::footprint(reference));
    plan.add(ModelInstance::footprint(reward));
    plan.add(Generator::footprint(options_.config, generator));
    plan.add(Generator::footprint(options_.config, reference_generator));
    plan.add(PpoTrainer::footprint(options_.settings, actor));
    arena_.emplace(*device_, plan);
    actor_.emplace(actor, *arena_, *stream_, *communicator_);
    critic_.emplace(critic, *arena_, *stream_, *communicator_);
    reference_.emplace(reference, *arena_, *stream_, *communicator_);
    reward_.emplace(reward, *arena_, *stream_, *communicator_);
    generator_.emplace(actor_->model(), generator, *arena_);
    reference_generator_.emplace(reference_->model(), reference_generator, *arena_);
    start();
  }

  PpoTrainer& trainer() { return *trainer_; }
  ModelInstance& actor() { return *actor_; }
  ModelInstance& critic() { return *critic_; }
  ModelInstance& reference() { return *reference_; }
  Stream& stream() { return *stream_; }
  Arena& arena() { return *arena_; }

  // Metrics of the last of all iterations from `first` on.
  Json run(int64_t first = 1, int64_t last = 0) {
    Json metrics;
    for (int64_t step = first; step <= (last > 0 ? last : options_.iterations); ++step)
      metrics = trainer_->iteration(step);
    return metrics;
  }

  // Probabilities of the next token after `ids`.
  std::vector<double> next_token_probabilities(ModelInstance& model, const std::vector<int32_t>& ids) {
    RaggedBatch batch;
    PredictionRows rows;
    for (int32_t token = 0; token < options_.config.vocab_size; ++token) {
      batch.append(ids, 0);
      rows.rows.push_back(batch.offsets.back() - 1);
      rows.targets.push_back(token);
    }
    std::vector<double> p = model.log_probs(batch, rows, options_.settings.temperature).log_probs;
    for (double& x : p) x = std::exp(x);
    return p;
  }

 private:
  ModelInstanceOptions instance(const std::string& prefix, Head head) const {
    return {.prefix = prefix,
            .config = options_.config,
            .head = head,
            .dtype = options_.dtype,
            .capacity = {options_.capacity_tokens, options_.capacity_tokens},
            .head_chunk_rows = options_.head_chunk_rows};
  }

  ModelInstanceOptions trained(ModelInstanceOptions o, Phase phase) const {
    o.training = true;
    o.train_phase = phase;
    o.gradient_last = Phase::train_critic;
    o.optimizer = adamw_options(options_.settings);
    return o;
  }

  GeneratorOptions generator_options(const std::string& prefix, Phase phase) const {
    return {.prefix = prefix,
            .dtype = options_.dtype,
            .slots = 64,
            .max_prompt_tokens = options_.settings.max_prompt_tokens,
            .max_new_tokens = options_.settings.max_new_tokens,
            .prefill_tokens = 256,
            .first = phase,
            .last = phase};
  }

  void start() {
    init_weights(*stream_, actor_->units(), options_.config, options_.init_seed);
    init_weights(*stream_, critic_->units(), options_.config, options_.init_seed + 1000);
    copy_weights(*stream_, critic_->units(), reward_->units());
    if (options_.prepare_actor) options_.prepare_actor(*stream_, *actor_);
    copy_weights(*stream_, actor_->units(), reference_->units());
    source_ =
        options_.reward_is_critic_start ? model_reward(*reward_, options_.affine) : function_reward(options_.reward);
    trainer_.emplace(options_.settings,
                     PpoModels{.actor = *actor_,
                               .reference = *reference_,
                               .critic = *critic_,
                               .critic_affine = options_.affine,
                               .generator = *generator_,
                               .reward = *source_,
                               .reference_generator = &*reference_generator_,
                               .reference_is_actor = true,
                               .critic_is_reward_model = options_.reward_is_critic_start},
                     options_.data, options_.iterations, *arena_, *stream_, *communicator_);
  }

  WorldOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<Arena> arena_;
  std::optional<ModelInstance> actor_, critic_, reference_, reward_;
  std::optional<Generator> generator_, reference_generator_;
  std::unique_ptr<RewardSource> source_;
  std::optional<PpoTrainer> trainer_;
};

}  // namespace tercet::ppo_test
