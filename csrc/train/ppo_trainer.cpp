#include "train/ppo_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "device/profile_scope.h"
#include "kernels/elementwise.h"
#include "kernels/ppo.h"
#include "store/hdf5_file.h"
#include "train/signals.h"

namespace tercet {
namespace {

constexpr double kWhitenEpsilon = 1e-8;

PpoBufferOptions buffer_options(const PpoSettings& settings, const ModelInstanceOptions& actor) {
  return {.dtype = actor.dtype,
          .responses = settings.rollouts,
          .response_tokens = settings.rollouts * settings.max_new_tokens,
          .capacity = actor.capacity};
}

UnitOptions ema_options(DType dtype) { return {.prefix = "ema", .dtype = statistics_dtype(dtype)}; }

void require_distinct_samples(const std::vector<Prompt>& prompts) {
  std::set<uint64_t> samples;
  for (const Prompt& prompt : prompts)
    TERCET_REQUIRE(samples.insert(prompt.sample).second, "two prompts have the sample number {}", prompt.sample);
}

// A clock that counts into `seconds` while it lives.
class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  ~Timer() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::vector<Slot> PpoTrainer::footprint(const PpoSettings& settings, const ModelInstanceOptions& actor) {
  std::vector<Slot> slots = PpoBuffers::footprint(buffer_options(settings, actor));
  if (settings.ema_decay == 0) return slots;
  const auto ema = UnitSet::footprint(opt_units(actor.config, actor.head), ema_options(actor.dtype));
  slots.insert(slots.end(), ema.begin(), ema.end());
  return slots;
}

PpoTrainer::PpoTrainer(const PpoSettings& settings, const PpoModels& models, PpoData data, int64_t iterations,
                       Arena& arena, Stream& stream, Communicator& communicator)
    : settings_(settings),
      models_(models),
      data_(std::move(data)),
      stream_(stream),
      communicator_(communicator),
      buffers_(buffer_options(settings, models.actor.options()), arena),
      prompt_order_(static_cast<int64_t>(data_.prompts.size()), settings.seed),
      ptx_order_(static_cast<int64_t>(data_.ptx_blocks.size()), order_seed(settings.seed, PpoOrder::ptx_blocks)),
      guard_(settings.max_skips),
      kl_coef_(settings.kl_coef) {
  check_settings();
  const int64_t steps = iterations * settings.ppo_epochs * settings.minibatches;
  actor_schedule_ = make_schedule(settings, settings.actor_lr, steps);
  critic_schedule_ = make_schedule(settings, settings.critic_lr, steps);
  if (settings.ema_decay == 0) return;
  const ModelInstanceOptions& actor = models.actor.options();
  ema_.emplace(opt_units(actor.config, actor.head), ema_options(actor.dtype), arena, stream, communicator);
  for (int u = 0; u < ema_->count(); ++u)
    for (int s = 0; s < static_cast<int>(ema_->spec(u).segments.size()); ++s)
      cast(stream, {.source = models_.actor.units().buffers(u, s).exact(), .target = ema_->buffers(u, s).weights});
}

void PpoTrainer::check_settings() const {
  if (data_.prompts.empty()) fail_input("there are no prompts", "--data", "give data with prompts");
  if (settings_.minibatches > settings_.rollouts)
    fail_input(fmt::format("{} responses cannot be cut into {} minibatches", settings_.rollouts, settings_.minibatches),
               "--minibatches", "give at most --rollouts");
  if ((settings_.ptx_coef != 0) != !data_.ptx_blocks.empty())
    fail_input("a pre-training mix needs both text and a coefficient", "--ptx-data, --ptx-coef",
               "give both or neither");
  if (!(settings_.temperature > 0))
    fail_input(fmt::format("a temperature of {}", settings_.temperature), "--temperature",
               "PPO samples from the whole distribution; give a number above 0");
  if (settings_.normalize_reward && !(models_.reward.sd() > 0 && std::isfinite(models_.reward.mean())))
    fail_input(fmt::format("scores with mean {} and standard deviation {}", models_.reward.mean(), models_.reward.sd()),
               settings_.reward_model, "train the reward model again, or give --normalize-reward off");
  require_distinct_samples(data_.prompts);
  require_distinct_samples(data_.eval_prompts);
  const ModelInstanceOptions& actor = models_.actor.options();
  for (const ModelInstance* other : {&models_.reference, &models_.critic}) {
    const ModelInstanceOptions& o = other->options();
    TERCET_REQUIRE(o.dtype == actor.dtype && o.capacity.tokens == actor.capacity.tokens &&
                       o.capacity.sequences == actor.capacity.sequences,
                   "{} and {} differ in dtype or capacity", o.prefix, actor.prefix);
  }
}

SamplingOptions PpoTrainer::sampling(uint64_t site) const {
  return {.temperature = settings_.temperature, .seed = settings_.seed, .site = site};
}

std::vector<Rollout> PpoTrainer::respond(Generator& generator, std::span<const Prompt* const> prompts, uint64_t site) {
  std::vector<GenerationRequest> requests;
  for (const Prompt* prompt : prompts)
    requests.push_back({.prompt = prompt->ids, .sample = prompt->sample, .max_new_tokens = settings_.max_new_tokens});
  const auto stop_check = [](size_t, std::span<const int32_t>) {
    throw_if_stop_requested();
    return false;
  };
  std::vector<Generation> generations = generator.generate(stream_, requests, sampling(site), stop_check);
  std::vector<Rollout> rollouts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Generation& generation = generations[i];
    Rollout rollout{.ids = prompts[i]->ids,
                    .prompt_length = prompts[i]->token_count(),
                    .record = prompts[i]->record,
                    .sample = prompts[i]->sample,
                    .terminated = generation.finish == Finish::end,
                    .answer = prompts[i]->answer,
                    .decode_log_probs = std::move(generation.log_probs)};
    rollout.ids.insert(rollout.ids.end(), generation.response.begin(), generation.response.end());
    rollouts.push_back(std::move(rollout));
  }
  return rollouts;
}

void PpoTrainer::score(RewardSource& source, std::vector<Rollout>& rollouts) const {
  std::vector<ScoredResponse> responses;
  for (const Rollout& rollout : rollouts) responses.push_back(rollout.scored());
  const std::vector<double> scores = source.score(responses);
  TERCET_REQUIRE(scores.size() == rollouts.size(), "a reward source gave {} scores for {} responses", scores.size(),
                 rollouts.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i]))
      fail_run(fmt::format("the reward is {}", scores[i]),
               fmt::format("response {} of {}, to the prompt of record {}", i + 1, scores.size(), rollouts[i].record),
               "check the reward model or function");
    rollouts[i].score = scores[i];
  }
}

std::vector<Rollout> PpoTrainer::draw_rollouts(int64_t step) {
  const auto prompts = static_cast<int64_t>(data_.prompts.size());
  const auto [begin, end] =
      equal_parts(settings_.rollouts, communicator_.size())[static_cast<size_t>(communicator_.rank())];
  std::vector<Rollout> rollouts;
  std::vector<const Prompt*> chosen;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = (step - 1) * settings_.rollouts + i;
    chosen.push_back(&data_.prompts[static_cast<size_t>(prompt_order_.at(position))]);
    // Prompts of one epoch share a site: an epoch that ends here is answered before the next one.
    if (i + 1 < end && (position + 1) % prompts != 0) continue;
    const auto epoch = static_cast<uint64_t>(position / prompts);
    for (Rollout& rollout : respond(models_.generator, chosen, 1 + epoch)) rollouts.push_back(std::move(rollout));
    chosen.clear();
  }
  return rollouts;
}

void PpoTrainer::compute_log_probs(Experience& x) {
  for (const RolloutBatch& batch : rollout_batches(x.rollouts, models_.actor.options().capacity)) {
    throw_if_stop_requested();
    const auto actor = models_.actor.log_probs(batch.batch, batch.rows, settings_.temperature);
    batch.scatter(x, actor.log_probs, x.log_probs);
    batch.scatter(x, actor.entropies, x.entropies);
    const auto reference = models_.reference.log_probs(batch.batch, batch.rows, settings_.temperature);
    batch.scatter(x, reference.log_probs, x.reference_log_probs);
  }
  for (const auto* values : {&x.log_probs, &x.reference_log_probs})
    for (const double value : *values)
      if (!std::isfinite(value))
        fail_run(fmt::format("a log-probability of a sampled token is {}", value),
                 values == &x.log_probs ? "actor" : "reference", "the weights are damaged; lower the learning rate");
}

void PpoTrainer::compute_values(Experience& x) {
  const ScoreAffine& scale = models_.critic_affine;
  for (const RolloutBatch& batch : rollout_batches(x.rollouts, models_.critic.options().capacity)) {
    throw_if_stop_requested();
    std::vector<double> values = models_.critic.scores(batch.batch, batch.rows.rows);
    for (double& value : values) {
      value = (value - scale.mean) / scale.sd;
      if (!std::isfinite(value))
        fail_run(fmt::format("a value is {}", value), "critic", "the weights are damaged; lower the learning rate");
    }
    batch.scatter(x, values, x.values);
  }
}

RewardScale PpoTrainer::reward_scale() const {
  if (!settings_.normalize_reward) return {.kl_coef = kl_coef_};
  return {models_.reward.mean(), models_.reward.sd(), kl_coef_};
}

void PpoTrainer::estimate_advantages(Experience& x, MetricTable& table) {
  const int64_t tokens = x.tokens();
  std::vector<double> scores;
  std::vector<uint8_t> terminated;
  for (const Rollout& rollout : x.rollouts) {
    scores.push_back(rollout.score);
    terminated.push_back(rollout.terminated ? 1 : 0);
  }
  const auto part = [tokens](const Tensor& tensor) { return tensor.row_range(0, tokens); };
  const Tensor offsets = buffers_.offsets.row_range(0, x.size() + 1);
  to_device(stream_, x.log_probs, part(buffers_.log_probs));
  to_device(stream_, x.reference_log_probs, part(buffers_.reference_log_probs));
  to_device(stream_, x.values, part(buffers_.values));
  to_device(stream_, scores, buffers_.scores.row_range(0, x.size()));
  stream_.copy_to_device(buffers_.terminated.data, terminated.data(), terminated.size());
  stream_.copy_to_device(offsets.data, x.offsets.data(), x.offsets.size() * sizeof(int32_t));
  const RewardScale scale = reward_scale();
  reward_shaping(stream_, {.log_prob = part(buffers_.log_probs),
                           .reference_log_prob = part(buffers_.reference_log_probs),
                           .scores = buffers_.scores.row_range(0, x.size()),
                           .terminated = buffers_.terminated.row_range(0, x.size()),
                           .offsets = offsets,
                           .rewards = part(buffers_.rewards),
                           .kl_coef = scale.kl_coef,
                           .score_mean = scale.mean,
                           .score_sd = scale.sd,
                           .reward_clip = settings_.reward_clip,
                           .missing_eos_penalty = settings_.missing_eos_penalty});
  gae(stream_, {.rewards = part(buffers_.rewards),
                .values = part(buffers_.values),
                .offsets = offsets,
                .advantages = part(buffers_.advantages),
                .returns = part(buffers_.returns),
                .gamma = settings_.gamma,
                .lambda = settings_.gae_lambda});
  x.rewards = to_host(stream_, part(buffers_.rewards));
  x.returns = to_host(stream_, part(buffers_.returns));
  const Moments moments = global_moments(to_host(stream_, part(buffers_.advantages)), communicator_);
  table.same("adv/mean", moments.mean);
  table.same("adv/std", moments.sd());
  if (settings_.whiten_advantages && moments.count > 1)
    whiten(stream_, {.x = part(buffers_.advantages),
                     .mean = moments.mean,
                     .variance = moments.variance,
                     .epsilon = kWhitenEpsilon});
  x.advantages = to_host(stream_, part(buffers_.advantages));
}

void PpoTrainer::check_start(const Experience& x) {
  if (models_.reference_is_actor)
    for (size_t t = 0; t < x.log_probs.size(); ++t)
      if (x.log_probs[t] != x.reference_log_probs[t])
        fail_run(
            fmt::format("actor and reference hold the same weights but give the log-probabilities {} and {} to one "
                        "token: the KL divergence does not start at 0",
                        x.log_probs[t], x.reference_log_probs[t]),
            "", "this is an error of tercet; please report it with the settings of the run");
  if (models_.critic_is_reward_model) check_critic(x);
}

void PpoTrainer::check_critic(const Experience& x) {
  const std::string remedy = "this is an error of tercet; please report it with the settings of the run";
  const RewardScale reward = reward_scale();
  const ScoreAffine& scale = models_.critic_affine;
  if (scale.mean != reward.mean || scale.sd != reward.sd)
    fail_run(fmt::format("the critic starts with the scale ({}, {}), the reward model has ({}, {})", scale.mean,
                         scale.sd, reward.mean, reward.sd),
             "critic", remedy);
  for (const RolloutBatch& batch : rollout_batches(x.rollouts, models_.critic.options().capacity)) {
    const std::vector<double> scores = models_.critic.scores(batch.batch, batch.last_rows);
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto index = static_cast<size_t>(batch.rollouts[i]);
      if (scores[i] != x.rollouts[index].score)
        fail_run(fmt::format("the critic starts as the reward model but scores response {} {} instead of {}", index + 1,
                             scores[i], x.rollouts[index].score),
                 "critic", remedy);
    }
  }
}

Json PpoTrainer::iteration(int64_t step) {
  timings_ = {};
  MetricTable table;
  std::vector<Rollout> rollouts;
  {
    const Timer timer(timings_.generate);
    const ProfileScope scope(stream_, "rollout");
    rollouts = draw_rollouts(step);
  }
  Experience experience;
  {
    const ProfileScope scope(stream_, "score");
    {
      const Timer timer(timings_.score);
      score(models_.reward, rollouts);
    }
    const Timer timer(timings_.logprob);
    experience = make_experience(std::move(rollouts));
    compute_log_probs(experience);
    compute_values(experience);
    if (step == 1) check_start(experience);
    estimate_advantages(experience, table);
  }
  if (transform_) transform_(experience);
  UpdateTotals totals;
  {
    const Timer timer(timings_.train);
    totals = update(step, experience);
  }
  timings_.generated_tokens = experience.tokens();
  double seen = 0;
  for (const Rollout& rollout : experience.rollouts) seen += static_cast<double>(rollout.length());
  communicator_.all_reduce_sum({&seen, 1});
  tokens_seen_ += static_cast<int64_t>(seen);

  MetricTable all;
  add_objective_metrics(all, experience, reward_scale(), communicator_);
  add_update_metrics(all, totals);
  add_value_metrics(all, experience, communicator_);
  all.append(table);
  add_response_metrics(all, experience.rollouts);
  add_decode_metrics(all, experience, communicator_);
  all.same("prompt/dropped", data_.dropped_prompts);
  all.same("skipped_steps", guard_.skipped());
  all.same("episode", step * settings_.rollouts);
  all.same("epoch", static_cast<double>(step * settings_.rollouts) / static_cast<double>(data_.prompts.size()));
  all.same("tokens_seen", tokens_seen_);
  const Json metrics = all.reduce(communicator_);
  if (settings_.adaptive_kl_target > 0)
    kl_coef_ = adapted_kl_coef(kl_coef_, metrics.at("objective/kl_seq").as_double(), settings_.adaptive_kl_target,
                               settings_.rollouts, settings_.kl_horizon);
  return metrics;
}

uint64_t PpoTrainer::checkpoint_bytes() {
  uint64_t bytes = models_.actor.checkpoint_bytes() + models_.critic.checkpoint_bytes();
  if (ema_)
    bytes += static_cast<uint64_t>(ema_->parameters()) * dtype_size(statistics_dtype(models_.actor.options().dtype));
  return bytes;
}

void PpoTrainer::save(Hdf5Writer& file, Json& state) {
  const ProfileScope scope(stream_, "save");
  models_.actor.save(file, state);
  models_.critic.save(file, state);
  for_each_ema_tensor([&](const TensorSpec& spec, const std::string& name, const Tensor& average) {
    const DType dtype = average.dtype;
    std::vector<std::byte> host(static_cast<size_t>(average.elements()) * dtype_size(dtype));
    stream_.copy_to_host(host.data(), average.data, host.size());
    stream_.synchronize();
    file.write({name, dtype, spec.shape}, host.data());
  });
  guard_.save(state);
  state.set("kl_coef", kl_coef_).set("tokens_seen", tokens_seen_);
}

void PpoTrainer::load(const Hdf5Reader& file, const Json& state) {
  models_.actor.load(file, state);
  models_.critic.load(file, state);
  for_each_ema_tensor([&](const TensorSpec&, const std::string& name, const Tensor& average) {
    std::vector<std::byte> host(static_cast<size_t>(average.elements()) * dtype_size(average.dtype));
    file.read(name, average.dtype, host.data());
    stream_.copy_to_device(average.data, host.data(), host.size());
    stream_.synchronize();
  });
  guard_.load(state);
  kl_coef_ = state.at("kl_coef").as_double();
  tokens_seen_ = state.at("tokens_seen").as_int();
}

void PpoTrainer::for_each_ema_tensor(
    const std::function<void(const TensorSpec&, const std::string& name, const Tensor& average)>& visit) {
  if (!ema_) return;
  for (int u = 0; u < ema_->count(); ++u)
    for (const SegmentSpec& segment : ema_->spec(u).segments)
      for (const TensorSpec& spec : segment.tensors) {
        const Tensor average = ema_->weight(spec.name);
        visit(spec, "ema/weights/" + spec.name, average);
      }
}

}  // namespace tercet
