// The updates of PpoTrainer: minibatches, losses, optimiser steps.
#include <algorithm>
#include <cmath>

#include "device/profile_scope.h"
#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/ppo.h"
#include "train/ppo_trainer.h"

namespace tercet {
namespace {

double largest_first_deviation(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 ? 1e-4 : 5e-2; }

// Adds a device tensor of sums to `target`, over all ranks.
void add_sums(Stream& stream, Communicator& communicator, const Tensor& sums, std::span<double> target) {
  std::vector<double> host = to_host(stream, sums);
  communicator.all_reduce_sum(host);
  for (size_t i = 0; i < host.size(); ++i) target[i] += host[i];
}

}  // namespace

void PpoTrainer::UpdateTotals::add(const UpdateTotals& other) {
  steps += other.steps;
  tokens += other.tokens;
  value_tokens += other.value_tokens;
  for (size_t i = 0; i < std::size(policy); ++i) policy[i] += other.policy[i];
  for (size_t i = 0; i < std::size(value); ++i) value[i] += other.value[i];
  ptx_loss += other.ptx_loss;
  actor_norm += other.actor_norm;
  critic_norm += other.critic_norm;
  actor_step.update += other.actor_step.update;
  actor_step.parameters += other.actor_step.parameters;
  critic_step.update += other.critic_step.update;
  critic_step.parameters += other.critic_step.parameters;
  max_deviation = std::max(max_deviation, other.max_deviation);
  stopped_early = stopped_early || other.stopped_early;
}

PpoTrainer::UpdateTotals PpoTrainer::update(int64_t step, const Experience& x) {
  UpdateTotals totals;
  int64_t number = (step - 1) * settings_.ppo_epochs * settings_.minibatches;
  const int64_t first_number = number + 1;
  for (int64_t epoch = 0; epoch < settings_.ppo_epochs; ++epoch) {
    const int64_t pass = (step - 1) * settings_.ppo_epochs + epoch;
    const std::vector<int64_t> order =
        epoch_order(settings_.rollouts, order_seed(settings_.seed, PpoOrder::minibatches), static_cast<uint64_t>(pass));
    for (const auto& [begin, end] : equal_parts(settings_.rollouts, settings_.minibatches)) {
      Minibatch minibatch =
          make_minibatch(x, std::span(order).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      draw_ptx_blocks(pass * settings_.rollouts + begin, end - begin, minibatch);
      UpdateTotals sums;
      accumulate_policy(minibatch, x, sums);
      if (++number == first_number) {
        totals.first_deviation = sums.max_deviation;
        check_first_ratio(step, sums.max_deviation);
      }
      sums.stopped_early = settings_.early_stop_kl > 0 && sums.policy[3] / sums.tokens > settings_.early_stop_kl;
      if (sums.stopped_early) {
        totals.add(sums);
        return totals;
      }
      accumulate_ptx(minibatch, sums);
      accumulate_value(minibatch, x, sums);
      if (step_optimizers(number, sums)) totals.add(sums);
    }
  }
  return totals;
}

// `members` count the responses of all ranks; this rank holds a range of them.
PpoTrainer::Minibatch PpoTrainer::make_minibatch(const Experience& x, std::span<const int64_t> members) const {
  const int64_t first =
      equal_parts(settings_.rollouts, communicator_.size())[static_cast<size_t>(communicator_.rank())].first;
  Minibatch minibatch;
  for (const int64_t member : members) {
    const int64_t index = member - first;
    if (index < 0 || index >= x.size()) continue;
    minibatch.rollouts.push_back(index);
    minibatch.tokens += static_cast<double>(x.rollouts[static_cast<size_t>(index)].response_length());
  }
  communicator_.all_reduce_sum({&minibatch.tokens, 1});
  return minibatch;
}

void PpoTrainer::draw_ptx_blocks(int64_t position, int64_t count, Minibatch& minibatch) {
  if (settings_.ptx_coef == 0) return;
  const auto [begin, end] = equal_parts(count, communicator_.size())[static_cast<size_t>(communicator_.rank())];
  for (int64_t i = begin; i < end; ++i) {
    minibatch.ptx_blocks.push_back(ptx_order_.at(position + i));
    const Sequence& block = data_.ptx_blocks[static_cast<size_t>(minibatch.ptx_blocks.back())];
    minibatch.ptx_tokens += static_cast<double>(block.token_count() - 1);
  }
  communicator_.all_reduce_sum({&minibatch.ptx_tokens, 1});
}

void PpoTrainer::accumulate_policy(const Minibatch& minibatch, const Experience& x, UpdateTotals& sums) {
  const ProfileScope scope(stream_, "train actor");
  models_.actor.units().zero_gradients(stream_);
  fill_zero(stream_, buffers_.policy_statistics);
  fill_zero(stream_, buffers_.max_ratio_deviation);
  const bool entropy_gradient = settings_.entropy_coef != 0;
  for (const RolloutBatch& batch : rollout_batches(x.rollouts, minibatch.rollouts, models_.actor.options().capacity)) {
    const int64_t rows = batch.rows.count();
    to_device(stream_, batch.gather(x, x.log_probs), buffers_.old_log_probs.row_range(0, rows));
    to_device(stream_, batch.gather(x, x.advantages), buffers_.batch_advantages.row_range(0, rows));
    const LmHead::Loss loss = [&](Stream& stream, const LmHead::Chunk& chunk) {
      const int64_t count = chunk.log_prob.rows();
      ppo_policy_loss(stream, {.log_prob = chunk.log_prob,
                               .old_log_prob = buffers_.old_log_probs.row_range(chunk.first, count),
                               .advantages = buffers_.batch_advantages.row_range(chunk.first, count),
                               .entropy = entropy_gradient ? chunk.entropy : Tensor(),
                               .d_log_prob = chunk.d_log_prob,
                               .d_entropy = chunk.d_entropy,
                               .statistics = buffers_.policy_statistics,
                               .max_ratio_deviation = buffers_.max_ratio_deviation,
                               .clip_range = settings_.clip_range,
                               .entropy_coef = settings_.entropy_coef,
                               .scale = 1 / minibatch.tokens});
    };
    models_.actor.accumulate_token_loss(batch.batch, batch.rows, loss, settings_.temperature, entropy_gradient);
  }
  sums.tokens = minibatch.tokens;
  add_sums(stream_, communicator_, buffers_.policy_statistics, sums.policy);
  std::vector<double> deviation = to_host(stream_, buffers_.max_ratio_deviation);
  communicator_.all_reduce_max(deviation);
  sums.max_deviation = deviation[0];
}

void PpoTrainer::accumulate_value(const Minibatch& minibatch, const Experience& x, UpdateTotals& sums) {
  const ProfileScope scope(stream_, "train critic");
  models_.critic.units().zero_gradients(stream_);
  fill_zero(stream_, buffers_.value_statistics);
  const ScoreAffine& scale = models_.critic_affine;
  for (const RolloutBatch& batch : rollout_batches(x.rollouts, minibatch.rollouts, models_.critic.options().capacity)) {
    const int64_t rows = batch.rows.count();
    to_device(stream_, batch.gather(x, x.values), buffers_.old_values.row_range(0, rows));
    to_device(stream_, batch.gather(x, x.returns), buffers_.batch_returns.row_range(0, rows));
    const auto loss = [&](Stream& stream, const Tensor& scores, const Tensor& d_scores) {
      const Tensor values = buffers_.new_values.row_range(0, rows);
      cast(stream, {.source = scores, .target = values});
      affine(stream, {.x = values, .scale = 1 / scale.sd, .shift = -scale.mean / scale.sd});
      // d score = d value / sd
      ppo_value_loss(stream, {.values = values,
                              .old_values = buffers_.old_values.row_range(0, rows),
                              .returns = buffers_.batch_returns.row_range(0, rows),
                              .d_values = d_scores,
                              .statistics = buffers_.value_statistics,
                              .clip_range = settings_.value_clip_range,
                              .scale = 1 / (minibatch.tokens * scale.sd)});
    };
    models_.critic.accumulate_score_loss(batch.batch, batch.rows.rows, loss);
  }
  sums.value_tokens = minibatch.tokens;
  add_sums(stream_, communicator_, buffers_.value_statistics, sums.value);
}

void PpoTrainer::accumulate_ptx(const Minibatch& minibatch, UpdateTotals& sums) {
  if (settings_.ptx_coef == 0) return;
  std::vector<int64_t> lengths;
  for (const int64_t block : minibatch.ptx_blocks)
    lengths.push_back(data_.ptx_blocks[static_cast<size_t>(block)].token_count());
  const BatchCapacity& capacity = models_.actor.options().capacity;
  double log_prob_sum = 0;
  for (const auto& [begin, end] : cut_micro_batches(lengths, capacity.tokens, capacity.sequences)) {
    RaggedBatch batch;
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& block = data_.ptx_blocks[static_cast<size_t>(minibatch.ptx_blocks[static_cast<size_t>(i)])];
      batch.append(block.ids, block.sample);
    }
    const std::vector<int64_t> from(static_cast<size_t>(end - begin), 1);
    const ModelInstance::TokenValues values = models_.actor.accumulate_cross_entropy(
        batch, prediction_rows(batch, from), settings_.ptx_coef / minibatch.ptx_tokens);
    for (const double log_prob : values.log_probs) log_prob_sum += log_prob;
  }
  communicator_.all_reduce_sum({&log_prob_sum, 1});
  sums.ptx_loss = -log_prob_sum / minibatch.ptx_tokens;
}

void PpoTrainer::check_first_ratio(int64_t step, double deviation) const {
  const double limit = largest_first_deviation(models_.actor.options().dtype);
  if (step != 1 || !(deviation > limit)) return;
  fail_run(fmt::format("before the first update the probability ratio of a sampled token is {:.3g} away from 1; "
                       "rounding explains at most {:.0e}",
                       deviation, limit),
           "actor", "this is an error of tercet; please report it with the settings of the run");
}

bool PpoTrainer::step_optimizers(int64_t number, UpdateTotals& sums) {
  AdamW& actor = models_.actor.optimizer();
  AdamW& critic = models_.critic.optimizer();
  sums.actor_norm = actor.gradient_norm(stream_);
  sums.critic_norm = critic.gradient_norm(stream_);
  actor_lr_ = actor_schedule_.at(number);
  critic_lr_ = critic_schedule_.at(number);
  const double losses[] = {sums.policy[0], sums.value[0], sums.ptx_loss};
  const StepGuard::Gradients gradients[] = {{actor, sums.actor_norm, "the actor's "},
                                            {critic, sums.critic_norm, "the critic's "}};
  if (!guard_.accept(stream_, losses, gradients)) return false;
  actor.step(stream_, actor_lr_, sums.actor_norm);
  critic.step(stream_, critic_lr_, sums.critic_norm);
  sums.actor_step = actor.step_norms(stream_);
  sums.critic_step = critic.step_norms(stream_);
  update_ema();
  sums.steps = 1;
  return true;
}

void PpoTrainer::update_ema() {
  if (!ema_) return;
  for (int u = 0; u < ema_->count(); ++u)
    for (int s = 0; s < static_cast<int>(ema_->spec(u).segments.size()); ++s)
      moving_average(stream_, {.average = ema_->buffers(u, s).weights,
                               .x = models_.actor.units().buffers(u, s).exact(),
                               .decay = settings_.ema_decay});
}

void PpoTrainer::add_update_metrics(MetricTable& table, const UpdateTotals& t) const {
  const auto steps = static_cast<double>(t.steps);
  const double policy = t.policy[0] / t.tokens;
  const double ratio = t.policy[4] / t.tokens;
  double total = policy - settings_.entropy_coef * t.policy[7] / t.tokens;
  table.same("loss/policy", policy);
  table.same("loss/value", t.value[0] / t.value_tokens);
  if (settings_.ptx_coef != 0) {
    table.same("loss/ptx", t.ptx_loss / steps);
    total += settings_.ptx_coef * t.ptx_loss / steps;
  }
  table.same("loss/total", total);
  table.same("policy/approxkl", t.policy[3] / t.tokens);
  table.same("policy/approxkl_k3", t.policy[6] / t.tokens);
  table.same("policy/clipfrac", (t.policy[1] + t.policy[2]) / t.tokens);
  table.same("policy/clipfrac_low", t.policy[1] / t.tokens);
  table.same("policy/clipfrac_high", t.policy[2] / t.tokens);
  table.same("policy/ratio_mean", ratio);
  table.same("policy/ratio_var", std::max(0.0, t.policy[5] / t.tokens - ratio * ratio));
  table.same("policy/ratio_maxdev", t.max_deviation);
  table.same("policy/ratio_first_minibatch_maxdev", t.first_deviation);
  table.same("policy/updates", t.steps);
  table.same("policy/stopped_early", t.stopped_early ? int64_t{1} : int64_t{0});
  table.same("value/clipfrac", t.value[1] / t.value_tokens);
  table.same("value/error", t.value[3] / t.value_tokens);
  table.same("actor/grad_norm", t.actor_norm / steps);
  table.same("critic/grad_norm", t.critic_norm / steps);
  table.same("actor/update_norm", t.actor_step.update / steps);
  table.same("critic/update_norm", t.critic_step.update / steps);
  table.same("actor/param_norm", t.actor_step.parameters / steps);
  table.same("critic/param_norm", t.critic_step.parameters / steps);
  const LossScale& actor_scale = models_.actor.optimizer().loss_scale();
  if (actor_scale.dynamic()) {
    table.same("actor/loss_scale", actor_scale.value());
    table.same("critic/loss_scale", models_.critic.optimizer().loss_scale().value());
  }
  table.same("actor/lr", actor_lr_);
  table.same("critic/lr", critic_lr_);
}

}  // namespace tercet
