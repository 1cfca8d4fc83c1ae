// Steps of SFT and of the reward model for `bench step`.
#include <algorithm>
#include <chrono>

#include "app/bench_step.h"
#include "app/bench_tensors.h"
#include "base/rng.h"
#include "kernels/elementwise.h"
#include "kernels/ranking_loss.h"
#include "train/run_setup.h"

namespace tercet {
namespace {

constexpr double kLearningRate = 1e-6;
constexpr int64_t kMaxSkips = 10;

// A model that is trained, with its memory.
struct TrainedModel {
  TrainedModel(BenchDevice& bench, const StepSizes& sizes, const NamedConfig& model, Head head,
               const std::vector<Slot>& loss_slots)
      : stream(*bench.stream), communicator(single_communicator()) {
    const ModelInstanceOptions options{.prefix = "model",
                                       .config = model.config,
                                       .head = head,
                                       .dtype = bench.dtype,
                                       .capacity = {sizes.tokens, sizes.tokens},
                                       .training = true,
                                       .inference = false};
    arena = allocate_plan(*bench.device, {ModelInstance::footprint(options), loss_slots});
    instance.emplace(options, *arena, stream, *communicator);
    fill_weights(stream, instance->units(), model.config);
  }

  // One optimiser step with what `accumulate` adds to the gradients; it returns the loss.
  void step(const std::function<double()>& accumulate) {
    instance->units().zero_gradients(stream);
    const double loss = accumulate();
    AdamW& optimizer = instance->optimizer();
    const double norm = optimizer.gradient_norm(stream);
    const StepGuard::Gradients gradients[] = {{optimizer, norm, ""}};
    if (!guard.accept(stream, {&loss, 1}, gradients)) return;
    optimizer.step(stream, kLearningRate, norm);
    optimizer.step_norms(stream);
    stream.synchronize();
  }

  Stream& stream;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Arena> arena;
  std::optional<ModelInstance> instance;
  StepGuard guard{kMaxSkips};
};

// Seconds of `steps` steps after one that is not counted.
BenchTime time_steps(int64_t steps, const std::function<void()>& step) {
  using Clock = std::chrono::steady_clock;
  step();
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) {
    const Clock::time_point start = Clock::now();
    step();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return bench_time(std::move(seconds));
}

// `items` items of `sequences` sequences each, cut into micro-batches.
std::vector<RaggedBatch> micro_batches(const StepSizes& sizes, const OptConfig& config, int64_t sequences) {
  const std::vector<int64_t> counts(static_cast<size_t>(sizes.batch), sequences * sizes.length());
  std::vector<RaggedBatch> batches;
  for (const auto& [begin, end] : cut_micro_batches(counts, sizes.tokens, sizes.tokens)) {
    RaggedBatch& batch = batches.emplace_back();
    for (int64_t i = begin * sequences; i < end * sequences; ++i)
      batch.append(bench_sequence(config, sizes.length(), static_cast<uint64_t>(i)), static_cast<uint64_t>(i));
  }
  return batches;
}

}  // namespace

size_t planned_bytes(const Arena& arena) { return arena.plan().total_bytes() + arena.plan().outside_bytes(); }

void fill_weights(Stream& stream, UnitSet& units, const OptConfig& config) {
  BenchTensors tensors(stream);
  const int64_t period = BenchTensors::kPeriod;
  const Tensor normal = tensors.random(statistics_dtype(units.options().dtype), {period}, config.init_std);
  const Tensor one = tensors.random(normal.dtype, {period}, 0);
  affine(stream, {.x = one, .shift = 1});
  const auto fill = [&](const TensorSpec& spec) {
    const Tensor weight = units.exact_weight(spec.name).reshaped({spec.elements()});
    const Tensor& source = spec.name.find("layer_norm.weight") != std::string::npos ? one : normal;
    if (spec.name.ends_with(".bias")) {
      fill_zero(stream, weight);
      return;
    }
    for (int64_t first = 0; first < spec.elements(); first += period) {
      const int64_t count = std::min(period, spec.elements() - first);
      cast(stream, {.source = source.row_range(0, count), .target = weight.row_range(first, count)});
    }
  };
  for (int u = 0; u < units.count(); ++u)
    for (const SegmentSpec& segment : units.spec(u).segments) std::ranges::for_each(segment.tensors, fill);
  units.round_weights(stream);
  stream.synchronize();
}

std::vector<int32_t> bench_sequence(const OptConfig& config, int64_t length, uint64_t number) {
  constexpr int64_t kSpecialTokens = 4;
  const RandomStream random(1, RandomPurpose::test, number);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(
        kSpecialTokens + static_cast<int64_t>(random.below(static_cast<uint64_t>(config.vocab_size - kSpecialTokens),
                                                           static_cast<uint64_t>(i)))));
  return ids;
}

// Cross-entropy over the answers, as `tercet sft` computes it.
PhaseTime time_sft(BenchDevice& bench, const StepSizes& sizes) {
  TrainedModel model(bench, sizes, sizes.model, Head::language_model, {});
  model.arena->require_all_taken();
  const std::vector<RaggedBatch> batches = micro_batches(sizes, sizes.model.config, 1);
  const int64_t labelled = sizes.batch * sizes.new_tokens;
  const auto accumulate = [&] {
    double log_prob_sum = 0;
    for (const RaggedBatch& batch : batches) {
      const std::vector<int64_t> from(static_cast<size_t>(batch.sequences()), sizes.prompt_tokens);
      const ModelInstance::TokenValues values = model.instance->accumulate_cross_entropy(
          batch, prediction_rows(batch, from), 1 / static_cast<double>(labelled));
      for (const double log_prob : values.log_probs) log_prob_sum += log_prob;
    }
    return -log_prob_sum / static_cast<double>(labelled);
  };
  const std::vector<int64_t> lengths(static_cast<size_t>(sizes.batch), sizes.length());
  return {.phase = "sft",
          .model = sizes.model.name,
          .time = time_steps(sizes.steps, [&] { model.step(accumulate); }),
          .unit = "tokens",
          .units = static_cast<double>(sizes.batch * sizes.length()),
          .flops = 3 * forward_flops(sizes.model.config, Head::language_model, lengths, labelled),
          .plan_bytes = planned_bytes(*model.arena)};
}

// The ranking loss at the last tokens, as `tercet reward` computes it.
PhaseTime time_reward(BenchDevice& bench, const StepSizes& sizes) {
  const DType statistics = statistics_dtype(bench.dtype);
  const auto loss_bytes = static_cast<size_t>(sizes.batch) * dtype_size(statistics);
  TrainedModel model(bench, sizes, sizes.critic, Head::scalar,
                     {{"reward/loss", MemoryClass::workspace, loss_bytes, Phase::train_actor, Phase::train_actor}});
  const Tensor losses = model.arena->take("reward/loss", statistics, {sizes.batch});
  model.arena->require_all_taken();
  const std::vector<RaggedBatch> batches = micro_batches(sizes, sizes.critic.config, 2);
  const double scale = 1 / static_cast<double>(sizes.batch);
  const auto accumulate = [&] {
    double sum = 0;
    for (const RaggedBatch& batch : batches) {
      std::vector<int32_t> last_rows;
      for (size_t b = 1; b < batch.offsets.size(); ++b) last_rows.push_back(batch.offsets[b] - 1);
      model.instance->accumulate_score_loss(
          batch, last_rows, [&](Stream& stream, const Tensor& scores, const Tensor& d_scores) {
            const Tensor loss = losses.row_range(0, batch.sequences() / 2);
            ranking_loss(stream, {.scores = scores, .loss = loss, .d_scores = d_scores, .scale = scale});
            for (const double value : to_host(stream, loss)) sum += value;
          });
    }
    return sum * scale;
  };
  const std::vector<int64_t> lengths(static_cast<size_t>(2 * sizes.batch), sizes.length());
  return {.phase = "reward",
          .model = sizes.critic.name,
          .time = time_steps(sizes.steps, [&] { model.step(accumulate); }),
          .unit = "pairs",
          .units = static_cast<double>(sizes.batch),
          .flops = 3 * forward_flops(sizes.critic.config, Head::scalar, lengths, 2 * sizes.batch),
          .plan_bytes = planned_bytes(*model.arena)};
}

}  // namespace tercet
