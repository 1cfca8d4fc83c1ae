// The algorithm of step 3 on given models, prompts and rewards: collect responses, estimate advantages, update actor
// and critic. Files, folders and flags are ppo.cpp's.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout/generator.h"
#include "train/model_instance.h"
#include "train/ppo_buffers.h"
#include "train/ppo_experience.h"
#include "train/ppo_math.h"
#include "train/ppo_metrics.h"
#include "train/reward_source.h"
#include "train/run_setup.h"

namespace tercet {

// What PPO works with. All model instances have one dtype and one capacity, so that one cut into micro-batches serves
// them all: with equal weights, actor and reference compute equal bits, and so do critic and reward model.
struct PpoModels {
  ModelInstance& actor;       // language model, training and inference; gradients live until Phase::train_critic
  ModelInstance& reference;   // language model, inference
  ModelInstance& critic;      // scalar head, training (Phase::train_critic) and inference
  ScoreAffine critic_affine;  // a value is (w . h - mean) / sd
  Generator& generator;       // of the actor
  RewardSource& reward;
  Generator* reference_generator = nullptr;  // needed by evaluate()
  RewardSource* judge = nullptr;             // evaluation only
  // What the models started as, for the checks of the first iteration.
  bool reference_is_actor = false;
  bool critic_is_reward_model = false;
};

// Prompts have distinct sample numbers.
struct PpoData {
  std::vector<Prompt> prompts;
  std::vector<Prompt> eval_prompts;
  std::vector<Sequence> ptx_blocks;
  int64_t dropped_prompts = 0;  // a metric
};

// Randomness. Prompts come in the order of epochs (ItemOrder); the noise of a response is RandomStream(seed, sampling,
// site = 1 + epoch of the prompt) at the prompt's sample number: it depends neither on the iteration's other prompts
// nor on their order, and no prompt meets the same noise twice. Evaluation has site 0.
class PpoTrainer {
 public:
  // Memory beside the models': `actor` are the options of the actor's instance.
  static std::vector<Slot> footprint(const PpoSettings& settings, const ModelInstanceOptions& actor);

  // `iterations` is the length of the run, for the schedule: iterations x epochs x minibatches optimiser steps, counted
  // as planned, whether or not a step is skipped. The models hold their weights already. Throws Error(Fault::input) on
  // settings that have no meaning.
  PpoTrainer(const PpoSettings& settings, const PpoModels& models, PpoData data, int64_t iterations, Arena& arena,
             Stream& stream, Communicator& communicator);

  // Iteration `step` (from 1); returns its metrics. Throws Interrupted when a stop is asked for before the updates
  // begin: then nothing has changed. Throws Error(Fault::run): a score that is not finite (it names the
  // response), a breach of the checks of the first iteration, too many skipped steps in a row.
  Json iteration(int64_t step);

  // A response of the actor.
  struct Sample {
    Rollout rollout;
    double kl = 0;
    std::optional<double> judge_score;
  };

  // Metrics "eval/..." on the evaluation prompts with fixed noise. Changes nothing in training. The reference's
  // responses are drawn and scored at the first call. The first `sample_count` responses are added to `samples`, when
  // it is given. Throws Interrupted when a stop is asked for.
  Json evaluate(size_t sample_count = 0, std::vector<Sample>* samples = nullptr);

  // Responses to the first `count` training prompts, with the noise of evaluation.
  std::vector<Sample> samples(size_t count);

  // Called with the experience of each iteration after GAE and whitening, before the updates; may change it. For
  // advantage estimators of one's own.
  using ExperienceTransform = std::function<void(Experience&)>;
  void set_experience_transform(ExperienceTransform transform) { transform_ = std::move(transform); }

  // Seconds of the latest iteration.
  struct Timings {
    double generate = 0, score = 0, logprob = 0, train = 0;  // logprob: values and advantages among it
    int64_t generated_tokens = 0;
  };
  const Timings& timings() const { return timings_; }

  double kl_coef() const { return kl_coef_; }
  // The moving average of the actor's weights; nullptr without --ema-decay.
  UnitSet* ema() { return ema_ ? &*ema_ : nullptr; }

  // Actor, critic, moving average and the trainer's own state, by name.
  uint64_t checkpoint_bytes();
  void save(Hdf5Writer& file, Json& state);
  void load(const Hdf5Reader& file, const Json& state);

 private:
  // Sums over minibatches, of all ranks; skipped ones do not count.
  struct UpdateTotals {
    int64_t steps = 0;        // optimiser steps taken
    double tokens = 0;        // response tokens
    double policy[8] = {};    // statistics of ppo_policy_loss
    double value_tokens = 0;  // fewer when an early stop leaves out the critic
    double value[4] = {};     // statistics of ppo_value_loss
    double ptx_loss = 0;      // token-mean cross-entropies of the steps
    double actor_norm = 0, critic_norm = 0;
    AdamW::StepNorms actor_step, critic_step;
    double max_deviation = 0;  // max |ratio - 1|
    bool stopped_early = false;
    double first_deviation = 0;  // of the first minibatch, skipped or not

    void add(const UpdateTotals& other);
  };
  // One optimiser step's share of the experience.
  struct Minibatch {
    std::vector<int64_t> rollouts;    // of this rank
    double tokens = 0;                // response tokens of all ranks
    std::vector<int64_t> ptx_blocks;  // of this rank
    double ptx_tokens = 0;            // predicted tokens of all ranks
  };

  void check_settings() const;
  SamplingOptions sampling(uint64_t site) const;
  std::vector<Rollout> respond(Generator& generator, std::span<const Prompt* const> prompts, uint64_t site);
  void score(RewardSource& source, std::vector<Rollout>& rollouts) const;
  std::vector<Rollout> draw_rollouts(int64_t step);
  void compute_log_probs(Experience& experience);
  void compute_values(Experience& experience);
  void estimate_advantages(Experience& experience, MetricTable& table);
  void check_start(const Experience& experience);
  void check_critic(const Experience& experience);
  RewardScale reward_scale() const;
  void for_each_ema_tensor(
      const std::function<void(const TensorSpec&, const std::string& name, const Tensor& average)>& visit);

  // ppo_update.cpp
  UpdateTotals update(int64_t step, const Experience& experience);
  Minibatch make_minibatch(const Experience& experience, std::span<const int64_t> members) const;
  void draw_ptx_blocks(int64_t position, int64_t count, Minibatch& minibatch);
  void accumulate_policy(const Minibatch& minibatch, const Experience& experience, UpdateTotals& sums);
  void accumulate_value(const Minibatch& minibatch, const Experience& experience, UpdateTotals& sums);
  void accumulate_ptx(const Minibatch& minibatch, UpdateTotals& sums);
  void check_first_ratio(int64_t step, double deviation) const;
  // Whether the step was taken; fills in norms.
  bool step_optimizers(int64_t number, UpdateTotals& sums);
  void update_ema();
  void add_update_metrics(MetricTable& table, const UpdateTotals& totals) const;

  // ppo_evaluation.cpp
  struct ReferenceResponses {
    std::vector<double> scores, judge_scores;
  };
  void prepare_reference_responses(std::span<const Prompt* const> prompts);

  const PpoSettings settings_;
  PpoModels models_;
  PpoData data_;
  Stream& stream_;
  Communicator& communicator_;
  PpoBuffers buffers_;
  std::optional<UnitSet> ema_;
  ItemOrder prompt_order_, ptx_order_;
  Schedule actor_schedule_, critic_schedule_;
  double actor_lr_ = 0, critic_lr_ = 0;  // of the latest step
  StepGuard guard_;
  double kl_coef_ = 0;
  int64_t tokens_seen_ = 0;
  ExperienceTransform transform_;
  Timings timings_;
  std::optional<ReferenceResponses> reference_responses_;
};

}  // namespace tercet
