// The phases of a PPO iteration for `bench step`.
#include <algorithm>

#include "app/bench_step.h"
#include "train/ppo_trainer.h"

namespace tercet {
namespace {

constexpr int64_t kGenerationSlots = 64;
constexpr int64_t kPrefillTokens = 1024;

PpoSettings ppo_settings(const StepSizes& sizes) {
  PpoSettings settings;
  settings.rollouts = sizes.batch;
  settings.minibatches = 1;
  settings.ppo_epochs = 1;
  settings.max_prompt_tokens = sizes.prompt_tokens;
  settings.max_new_tokens = sizes.new_tokens;
  settings.normalize_reward = false;
  settings.schedule = "constant";
  settings.warmup = 0;
  return settings;
}

ModelInstanceOptions instance(const std::string& prefix, const NamedConfig& model, Head head, DType dtype,
                              int64_t tokens) {
  return {.prefix = prefix, .config = model.config, .head = head, .dtype = dtype, .capacity = {tokens, tokens}};
}

ModelInstanceOptions trained(ModelInstanceOptions options, const PpoSettings& settings, Phase phase) {
  options.training = true;
  options.train_phase = phase;
  options.gradient_last = Phase::train_critic;
  options.optimizer = adamw_options(settings);
  return options;
}

PpoData random_prompts(const StepSizes& sizes) {
  PpoData data;
  for (int64_t i = 0; i < sizes.batch; ++i) {
    Prompt prompt;
    prompt.ids = bench_sequence(sizes.model.config, sizes.prompt_tokens, static_cast<uint64_t>(i));
    prompt.ids[0] = sizes.model.config.bos_token_id;
    prompt.record = prompt.sample = static_cast<uint64_t>(i);
    data.prompts.push_back(std::move(prompt));
  }
  return data;
}

// Four models, a generator and the trainer, with their memory.
class PpoBench {
 public:
  PpoBench(BenchDevice& bench, const StepSizes& sizes)
      : sizes_(sizes), stream_(*bench.stream), communicator_(single_communicator()), settings_(ppo_settings(sizes)) {
    const auto options = [&](const char* prefix, const NamedConfig& model, Head head) {
      return instance(prefix, model, head, bench.dtype, sizes.tokens);
    };
    const auto actor = trained(options("actor", sizes.model, Head::language_model), settings_, Phase::train_actor);
    const auto critic = trained(options("critic", sizes.critic, Head::scalar), settings_, Phase::train_critic);
    const auto reference = options("reference", sizes.model, Head::language_model);
    const auto reward = options("reward", sizes.critic, Head::scalar);
    const GeneratorOptions generator{.prefix = "generator",
                                     .dtype = bench.dtype,
                                     .slots = std::min(kGenerationSlots, sizes.batch),
                                     .max_prompt_tokens = sizes.prompt_tokens,
                                     .max_new_tokens = sizes.new_tokens,
                                     .prefill_tokens = std::max(kPrefillTokens, sizes.prompt_tokens)};
    arena_ = allocate_plan(
        *bench.device, {ModelInstance::footprint(actor), ModelInstance::footprint(critic),
                        ModelInstance::footprint(reference), ModelInstance::footprint(reward),
                        Generator::footprint(sizes.model.config, generator), PpoTrainer::footprint(settings_, actor)});
    make(actor_, actor);
    make(reference_, reference);
    make(critic_, critic);
    make(reward_, reward);
    generator_.emplace(actor_->model(), generator, *arena_);
    source_ = model_reward(*reward_, {});
    start();
  }

  // Seconds of the phases of iteration `step`, from 1.
  PpoTrainer::Timings iteration(int64_t step) {
    trainer_->iteration(step);
    stream_.synchronize();
    return trainer_->timings();
  }

  // Of the latest iteration.
  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t response_tokens() const { return trainer_->timings().generated_tokens; }
  size_t plan_bytes() const { return planned_bytes(*arena_); }

 private:
  void make(std::optional<ModelInstance>& model, const ModelInstanceOptions& options) {
    model.emplace(options, *arena_, stream_, *communicator_);
    fill_weights(stream_, model->units(), options.config);
  }

  void start() {
    const PpoModels models{.actor = *actor_,
                           .reference = *reference_,
                           .critic = *critic_,
                           .critic_affine = {},
                           .generator = *generator_,
                           .reward = *source_,
                           .reference_is_actor = true,
                           .critic_is_reward_model = true};
    trainer_.emplace(settings_, models, random_prompts(sizes_), 1 + sizes_.steps, *arena_, stream_, *communicator_);
    trainer_->set_experience_transform([this](Experience& experience) {
      lengths_.clear();
      for (const Rollout& rollout : experience.rollouts) lengths_.push_back(rollout.length());
    });
    arena_->require_all_taken();
  }

  const StepSizes& sizes_;
  Stream& stream_;
  std::unique_ptr<Communicator> communicator_;
  PpoSettings settings_;
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> actor_, reference_, critic_, reward_;
  std::optional<Generator> generator_;
  std::unique_ptr<RewardSource> source_;
  std::optional<PpoTrainer> trainer_;
  std::vector<int64_t> lengths_;
};

struct PpoFlops {
  double generate, score, update;

  // The last token of a response is not fed; rewards are taken at one row of each sequence.
  PpoFlops(const StepSizes& sizes, const PpoBench& bench) {
    std::vector<int64_t> fed = bench.lengths();
    for (int64_t& length : fed) --length;
    const auto actor = [&](std::span<const int64_t> lengths) {
      return forward_flops(sizes.model.config, Head::language_model, lengths, bench.response_tokens());
    };
    const double critic = forward_flops(sizes.critic.config, Head::scalar, bench.lengths(), bench.response_tokens());
    const double reward = forward_flops(sizes.critic.config, Head::scalar, bench.lengths(), sizes.batch);
    generate = actor(fed);
    score = 2 * actor(bench.lengths()) + critic + reward;
    update = 3 * (actor(bench.lengths()) + critic);
  }
};

}  // namespace

std::vector<PhaseTime> time_ppo(BenchDevice& device, const StepSizes& sizes) {
  PpoBench bench(device, sizes);
  bench.iteration(1);
  std::vector<double> generate, score, update, all;
  for (int64_t step = 2; step <= 1 + sizes.steps; ++step) {
    const PpoTrainer::Timings times = bench.iteration(step);
    generate.push_back(times.generate);
    score.push_back(times.score + times.logprob);
    update.push_back(times.train);
    all.push_back(times.generate + times.score + times.logprob + times.train);
  }
  const PpoFlops flops(sizes, bench);
  const auto phase = [&](const char* name, std::string model, std::vector<double> seconds, double work) {
    return PhaseTime{.phase = name,
                     .model = std::move(model),
                     .time = bench_time(std::move(seconds)),
                     .unit = "sequences",
                     .units = static_cast<double>(sizes.batch),
                     .flops = work,
                     .plan_bytes = bench.plan_bytes()};
  };
  const std::string both = sizes.model.name + " + " + sizes.critic.name;
  return {phase("ppo generate", sizes.model.name, std::move(generate), flops.generate),
          phase("ppo score", both, std::move(score), flops.score),
          phase("ppo update", both, std::move(update), flops.update),
          phase("ppo iteration", both, std::move(all), flops.generate + flops.score + flops.update)};
}

}  // namespace tercet
