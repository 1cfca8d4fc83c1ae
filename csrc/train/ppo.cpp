// Step 3 as a command: files, memory plan, run folder and outputs around PpoTrainer.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "rollout/text_generation.h"
#include "store/hdf5_file.h"
#include "train/ppo_trainer.h"
#include "train/report.h"
#include "train/report_samples.h"
#include "train/reward_rule.h"
#include "train/signals.h"
#include "train/steps.h"

namespace tercet {
namespace {

constexpr int kSplitShare = 2;
constexpr int64_t kGenerationSlots = 64;
constexpr int64_t kPrefillTokens = 1024;

// A model file of the run.
struct ModelInput {
  std::string flag;
  std::string path;  // as given
  std::string copy;  // its name among the run's inputs
  std::string file;  // where it is read: the run's copy on resume
  ModelInfo info;
  std::optional<FreshHead> fresh_head = {};
};

ModelInput read_input(const PpoSettings& settings, const std::string& flag, const std::string& path,
                      const std::string& copy, Head head) {
  ModelInput input{flag, path, copy, resumed_input(settings, path, copy), {}};
  input.info = read_model_info(input.file);
  if (input.info.head != head)
    fail_input(head == Head::scalar ? "a reward model is needed; this is a language model"
                                    : "a language model is needed; this is a reward model",
               flag + " " + path, "give the file of the right step");
  return input;
}

void require_same_tokenizer(const ModelInput& a, const ModelInput& b) {
  if (a.info.vocab_json != b.info.vocab_json || a.info.merges_txt != b.info.merges_txt)
    fail_input(fmt::format("the tokenizers of {} {} and {} {} differ: ids of one mean nothing to the other", a.flag,
                           a.path, b.flag, b.path),
               b.flag, "use models that share a tokenizer");
}

void require_positions(const ModelInput& input, const PpoSettings& settings) {
  const int64_t needed = checked_add(settings.max_prompt_tokens, settings.max_new_tokens);
  if (needed > input.info.config.max_position_embeddings)
    fail_input(fmt::format("prompts of {} and responses of {} tokens need {} positions; the model has {}",
                           settings.max_prompt_tokens, settings.max_new_tokens, needed,
                           input.info.config.max_position_embeddings),
               input.flag + " " + input.path, "lower --max-prompt-tokens or --max-new-tokens");
}

// The critic where there is no reward model to start from: the language model with a score head of zeros, so that all
// values are 0 at first.
ModelInput with_score_head(ModelInput input) {
  input.info.head = Head::scalar;
  input.info.affine = ScoreAffine{};
  input.fresh_head = FreshHead{};
  return input;
}

class PpoRun {
 public:
  PpoRun(const PpoSettings& settings, const Json& recorded)
      : settings_(settings),
        recorded_(recorded),
        run_(settings),
        rule_(find_reward_rule(settings.reward_rule)),
        tokenizer_(read_inputs()) {}

  int run() {
    load_data();
    RunFolder folder({settings_.out, "ppo", settings_.resume, settings_.overwrite, settings_.tensorboard});
    folder_ = &folder;
    hashes_ = input_hashes(data_files(), {});
    for (const ModelInput* input : inputs()) hashes_.set(recorded_name(settings_, input->path), hash_file(input->file));
    folder.check_config(recorded_, hashes_);
    const int64_t iterations = total_iterations();
    require_resumable(folder, settings_, iterations);
    allocate();
    read_all_weights();
    build_trainer(iterations);
    throw_if_stop_requested();
    folder.write_or_check_config(recorded_, hashes_);
    for (const ModelInput* input : inputs()) folder.keep_input(input->file, input->copy);
    return run_until_stopped(settings_, "ppo", [&] {
      run_training_loop(folder, settings_, iterations, hooks());
      finish(iterations);
    });
  }

 private:
  Tokenizer read_inputs() {
    const auto read = [&](const char* flag, const std::string& path, const char* copy, Head head) {
      return read_input(settings_, flag, path, copy, head);
    };
    actor_ = read("--actor", settings_.actor, "actor.h5", Head::language_model);
    if (rule_ == nullptr) reward_ = read("--reward-model", settings_.reward_model, "reward.h5", Head::scalar);
    critic_ = !settings_.critic.empty() ? read("--critic", settings_.critic, "critic.h5", Head::scalar)
              : reward_                 ? *reward_
                                        : with_score_head(actor_);
    reference_ = settings_.reference.empty()
                     ? actor_
                     : read("--reference", settings_.reference, "reference.h5", Head::language_model);
    if (!settings_.judge_model.empty()) judge_ = read("--judge-model", settings_.judge_model, "judge.h5", Head::scalar);
    Tokenizer tokenizer = actor_.info.tokenizer(actor_.path);
    for (const ModelInput* input : inputs()) {
      require_same_tokenizer(actor_, *input);
      require_tokenizer_fits(tokenizer, input->info.config, input->path);
      require_positions(*input, settings_);
    }
    return tokenizer;
  }

  std::vector<std::string> data_files() const {
    std::vector<std::string> files = settings_.data;
    files.insert(files.end(), settings_.eval_data.begin(), settings_.eval_data.end());
    files.insert(files.end(), settings_.ptx_data.begin(), settings_.ptx_data.end());
    return files;
  }

  std::vector<const ModelInput*> inputs() const {
    std::vector<const ModelInput*> all = {&actor_, &critic_, &reference_};
    if (reward_) all.push_back(&*reward_);
    if (judge_) all.push_back(&*judge_);
    return all;
  }

  PromptData load_prompt_data(const std::vector<std::string>& paths, const char* name) {
    CommonSettings common = settings_;
    common.max_length = 0;  // of --ptx-data only
    DataOptions options = data_options(common, paths, actor_.info, kSplitShare);
    options.max_prompt_tokens = settings_.max_prompt_tokens;
    PromptData data = load_prompts(options, tokenizer_, rule_ == nullptr ? AnswerCheck{} : rule_->drop_class);
    log::info("{}: {} prompts, {} tokens; {}", name, data.prompts.size(), data.tokens, data.drops.text());
    return data;
  }

  void load_data() {
    PromptData prompts = load_prompt_data(settings_.data, "data");
    data_.prompts = std::move(prompts.prompts);
    data_.dropped_prompts = prompts.drops.total();
    drops_ = std::move(prompts.drops);
    if (!settings_.eval_data.empty()) {
      PromptData held_out = load_prompt_data(settings_.eval_data, "held out");
      data_.eval_prompts = std::move(held_out.prompts);
      held_out_drops_ = std::move(held_out.drops);
    }
    if (settings_.ptx_data.empty()) return;
    TextBlocks blocks =
        load_text_blocks(data_options(settings_, settings_.ptx_data, actor_.info, kSplitShare), tokenizer_);
    log::info("pre-training mix: {} blocks, {} tokens; {}", blocks.blocks.size(), blocks.tokens, blocks.drops.text());
    data_.ptx_blocks = std::move(blocks.blocks);
    ptx_drops_ = std::move(blocks.drops);
  }

  int64_t total_iterations() const {
    if (settings_.steps > 0) return settings_.steps;
    const double responses = settings_.epochs * static_cast<double>(data_.prompts.size());
    return std::max<int64_t>(1, ceil_div<int64_t>(std::llround(responses), settings_.rollouts));
  }

  ModelInstanceOptions instance(const std::string& prefix, const ModelInput& input) const {
    const int64_t ptx = settings_.ptx_data.empty() ? 0 : settings_.max_length;
    const int64_t tokens =
        micro_batch_tokens(settings_, std::max(settings_.max_prompt_tokens + settings_.max_new_tokens, ptx));
    return {.prefix = prefix,
            .config = input.info.config,
            .head = input.info.head,
            .dtype = run_.dtype,
            .capacity = {tokens, tokens}};
  }

  ModelInstanceOptions trained(ModelInstanceOptions options, Phase phase, const std::string& recompute,
                               double weight_decay, double max_grad_norm) const {
    options.training = true;
    options.recompute = parse_recompute(recompute);
    options.train_phase = phase;
    options.gradient_last = Phase::train_critic;  // both models step together, or neither
    options.optimizer = adamw_options(settings_);
    options.optimizer.weight_decay = weight_decay;
    options.optimizer.max_grad_norm = max_grad_norm;
    return options;
  }

  GeneratorOptions generator_options(const std::string& prefix, int64_t prompts, Phase phase) const {
    return {.prefix = prefix,
            .dtype = run_.dtype,
            .slots = settings_.generation_slots > 0 ? settings_.generation_slots : std::min(kGenerationSlots, prompts),
            .max_prompt_tokens = settings_.max_prompt_tokens,
            .max_new_tokens = settings_.max_new_tokens,
            .prefill_tokens = std::max(kPrefillTokens, settings_.max_prompt_tokens),
            .first = phase,
            .last = phase};
  }

  void allocate() {
    const auto actor = trained(instance("actor", actor_), Phase::train_actor, settings_.actor_recompute,
                               settings_.actor_weight_decay, settings_.actor_max_grad_norm);
    const auto critic = trained(instance("critic", critic_), Phase::train_critic, settings_.critic_recompute,
                                settings_.critic_weight_decay, settings_.critic_max_grad_norm);
    const auto reference = instance("reference", reference_);
    const auto generator = generator_options("generator", settings_.rollouts, Phase::rollout);
    const auto reference_generator =
        generator_options("reference_generator", static_cast<int64_t>(data_.eval_prompts.size()), Phase::evaluate);
    std::vector<std::vector<Slot>> footprints = {
        ModelInstance::footprint(actor), ModelInstance::footprint(critic), ModelInstance::footprint(reference),
        Generator::footprint(actor.config, generator), PpoTrainer::footprint(settings_, actor)};
    if (reward_) footprints.push_back(ModelInstance::footprint(instance("reward", *reward_)));
    if (judge_) footprints.push_back(ModelInstance::footprint(instance("judge", *judge_)));
    if (!data_.eval_prompts.empty()) footprints.push_back(Generator::footprint(reference.config, reference_generator));
    arena_ = allocate_plan(*run_.device, footprints);
    const auto make = [&](std::optional<ModelInstance>& model, const ModelInstanceOptions& options) {
      model.emplace(options, *arena_, *run_.stream, *run_.communicator);
    };
    make(actor_model_, actor);
    make(critic_model_, critic);
    make(reference_model_, reference);
    if (reward_) make(reward_model_, instance("reward", *reward_));
    if (judge_) make(judge_model_, instance("judge", *judge_));
    generator_.emplace(actor_model_->model(), generator, *arena_);
    if (!data_.eval_prompts.empty())
      reference_generator_.emplace(reference_model_->model(), reference_generator, *arena_);
  }

  void read_all_weights() {
    const auto read = [&](const ModelInput& input, ModelInstance& model) {
      throw_if_stop_requested();
      read_weights(*run_.stream, input.file, model.units(), input.fresh_head);
    };
    read(actor_, *actor_model_);
    if (reward_) read(*reward_, *reward_model_);
    read(reference_, *reference_model_);
    read(critic_, *critic_model_);
    if (judge_) read(*judge_, *judge_model_);
  }

  // The affine map of a reward model or critic, or the identity without --normalize-reward.
  ScoreAffine affine_of(const ModelInput& input) const {
    if (!settings_.normalize_reward) return {};
    if (!input.info.affine)
      fail_input("the model has no mean and standard deviation of its scores", input.flag + " " + input.path,
                 "train it with `tercet reward`, or give --normalize-reward off");
    return *input.info.affine;
  }

  void build_trainer(int64_t iterations) {
    reward_source_ = rule_ == nullptr ? model_reward(*reward_model_, affine_of(*reward_)) : rule_->source(tokenizer_);
    if (judge_) judge_source_ = model_reward(*judge_model_, {});
    const PpoModels models{.actor = *actor_model_,
                           .reference = *reference_model_,
                           .critic = *critic_model_,
                           .critic_affine = affine_of(critic_),
                           .generator = *generator_,
                           .reward = *reward_source_,
                           .reference_generator = reference_generator_ ? &*reference_generator_ : nullptr,
                           .judge = judge_source_.get(),
                           .reference_is_actor = settings_.reference.empty(),
                           .critic_is_reward_model = reward_ && settings_.critic.empty()};
    trainer_.emplace(settings_, models, std::move(data_), iterations, *arena_, *run_.stream, *run_.communicator);
    arena_->require_all_taken();
  }

  StepHooks hooks() {
    StepHooks hooks;
    hooks.train = [this](int64_t step) { return train(step); };
    if (!settings_.eval_data.empty()) hooks.evaluate = [this](int64_t step) { return evaluate(step); };
    hooks.checkpoint_bytes = [this] { return trainer_->checkpoint_bytes(); };
    hooks.save = [this](Hdf5Writer& file, Json& state) {
      trainer_->save(file, state);
      if (best_score_) state.set("best_score", *best_score_);
    };
    hooks.load = [this](const Hdf5Reader& file, const Json& state) {
      trainer_->load(file, state);
      if (const Json* best = state.find("best_score")) best_score_ = best->as_double();
    };
    hooks.summary = [](const Json& metrics) {
      return fmt::format("score {:.4f}  kl {:.3f}  reward {:.4f}  length {:.1f}",
                         metrics.at("objective/score").as_double(), metrics.at("objective/kl_seq").as_double(),
                         metrics.at("objective/rlhf_reward").as_double(), metrics.at("response/len_mean").as_double());
    };
    hooks.flops = [this] { return flops(); };
    hooks.peak_flops = run_.peak_flops();
    hooks.products = run_.products();
    return hooks;
  }

  double flops() const {
    double sum = generator_->flops();
    for (const auto* model : {&actor_model_, &critic_model_, &reference_model_, &reward_model_})
      if (*model) sum += (*model)->flops();
    return sum;
  }

  Json train(int64_t step) {
    if (step == 1 && settings_.eval_data.empty()) write_samples(0, trainer_->samples(kFixedSamples));
    Json metrics = trainer_->iteration(step);
    const PpoTrainer::Timings& times = trainer_->timings();
    const double seconds = times.generate + times.score + times.logprob + times.train;
    Json line = Json::object();
    line.set("step", step).set("time/generate", times.generate).set("time/score", times.score);
    line.set("time/logprob", times.logprob)
        .set("time/train", times.train)
        .set("generated_tokens", times.generated_tokens);
    line.set("sequences_per_s", static_cast<double>(settings_.rollouts) / seconds);
    folder_->timings(line);
    return metrics;
  }

  Json evaluate(int64_t step) {
    std::vector<PpoTrainer::Sample> samples;
    const Json metrics = trainer_->evaluate(kFixedSamples, &samples);
    const double score = metrics.at("eval/score").as_double();
    if (!best_score_ || score > *best_score_) {
      best_score_ = score;
      write(actor_.info, "best.h5", actor_model_->units());
    }
    write_samples(step, samples);
    return metrics;
  }

  void write_samples(int64_t step, const std::vector<PpoTrainer::Sample>& samples) {
    int64_t index = 0;
    for (const PpoTrainer::Sample& sample : samples) {
      const Rollout& rollout = sample.rollout;
      Json line = Json::object();
      line.set("step", step).set("index", index++).set("record", rollout.record);
      line.set("prompt", tokenizer_.decode_utf8(rollout.prompt()));
      line.set("response", tokenizer_.decode_utf8(rollout.response())).set("score", rollout.score);
      if (sample.judge_score) line.set("judge_score", *sample.judge_score);
      line.set("kl", sample.kl).set("length", rollout.response_length());
      line.set("finish", std::string(finish_name(rollout.terminated ? Finish::end : Finish::length)));
      folder_->sample(line);
    }
  }

  void write(ModelInfo info, const std::string& name, UnitSet& units) {
    info.provenance = Json::object();
    info.provenance.set("command", "ppo").set("settings", recorded_).set("inputs", hashes_);
    info.dtype = statistics_dtype(run_.dtype);
    write_model(*run_.stream, folder_->file(name), info, units, info.dtype);
    log::info("model: {}", folder_->file(name));
  }

  void finish(int64_t iterations) {
    if (settings_.eval_data.empty()) write_samples(iterations, trainer_->samples(kFixedSamples));
    write(actor_.info, "model.h5", actor_model_->units());
    ModelInfo critic = critic_.info;
    critic.affine = affine_of(critic_);
    write(critic, "critic.h5", critic_model_->units());
    if (UnitSet* ema = trainer_->ema()) write(actor_.info, "ema.h5", *ema);
    std::vector<std::pair<std::string, const DropCounts*>> sources = {{"training", &drops_}};
    if (!settings_.eval_data.empty()) sources.emplace_back("held out", &held_out_drops_);
    if (!settings_.ptx_data.empty()) sources.emplace_back("pre-training mix", &ptx_drops_);
    write_report(folder_->path(), {.tables = {dropped_records_table(sources)}, .memory_plan = arena_->plan().table()});
    log::info("report: {}", folder_->file("report.html"));
  }

  const PpoSettings& settings_;
  const Json& recorded_;
  RunDevice run_;
  const RewardRule* rule_;  // nullptr: a reward model
  ModelInput actor_, critic_, reference_;
  std::optional<ModelInput> reward_, judge_;
  Tokenizer tokenizer_;
  PpoData data_;
  DropCounts drops_, held_out_drops_, ptx_drops_;
  RunFolder* folder_ = nullptr;
  Json hashes_;
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> actor_model_, critic_model_, reference_model_, reward_model_, judge_model_;
  std::optional<Generator> generator_, reference_generator_;
  std::unique_ptr<RewardSource> reward_source_, judge_source_;
  std::optional<PpoTrainer> trainer_;
  std::optional<double> best_score_;
};

}  // namespace

int run_ppo(const PpoSettings& settings, const Json& recorded) {
  return run_with_signals([&] { return PpoRun(settings, recorded).run(); });
}

}  // namespace tercet
