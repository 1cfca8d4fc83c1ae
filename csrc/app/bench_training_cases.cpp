// Cases of training around the model: the optimiser over the parameters of a block, and the losses over a micro-batch.
#include <algorithm>
#include <numeric>

#include "app/bench_cases.h"
#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/ppo.h"
#include "kernels/ranking_loss.h"

namespace tercet {
namespace {

// Elements of the matrices of a block, which are one segment.
int64_t block_parameters(const OptConfig& config) {
  return 4 * config.hidden_size * config.hidden_size + 2 * config.hidden_size * config.ffn_dim;
}

std::string parameter_words(int64_t n) { return fmt::format("{} parameters", n); }

void add_adamw(BenchCaseList& list) {
  const int64_t n = block_parameters(list.sizes().config);
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  const bool master = dtype != statistics;
  list.add({.op = adamw.name(),
            .shape = parameter_words(n),
            // gradient, master (or the weights), m, v read and written; 16-bit weights written
            .bytes = n * (8 * element_bytes(statistics) + (master ? element_bytes(dtype) : 0)),
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const AdamWArgs args{.weights = t.random(dtype, {n}, kBenchWeightScale),
                                   .master = master ? t.random(statistics, {n}, kBenchWeightScale) : Tensor(),
                                   .gradient = t.random(statistics, {n}, 1e-3),
                                   .m = t.zeros(statistics, {n}),
                                   .v = t.zeros(statistics, {n}),
                                   .control = t.doubles(std::vector<double>{1, 0}),
                                   .lr = 1e-6};
              return {[args](Stream& s) { adamw(s, args); }};
            }});
}

void add_parameter_passes(BenchCaseList& list) {
  const int64_t n = block_parameters(list.sizes().config);
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  list.add_statistics({.op = sum_of_squares.name(),
                       .part = "gradients",
                       .shape = parameter_words(n),
                       .bytes = n * element_bytes(statistics),  // x read
                       .prepare = [=](BenchTensors& t) -> BenchCall {
                         const SumOfSquaresArgs args{t.random(statistics, {n}), t.zeros(DType::f64, {1})};
                         return {[args](Stream& s) { sum_of_squares(s, args); }};
                       }});
  list.add_statistics({.op = moving_average.name(),
                       .shape = parameter_words(n),
                       .bytes = n * 3 * element_bytes(statistics),  // average and x read, average written
                       .prepare = [=](BenchTensors& t) -> BenchCall {
                         const MovingAverageArgs args{t.random(statistics, {n}), t.random(statistics, {n}), 0.999};
                         return {[args](Stream& s) { moving_average(s, args); }};
                       }});
  list.add({.op = cast.name(),
            .part = fmt::format("{} to {}", dtype_name(statistics), dtype_name(dtype)),
            .shape = parameter_words(n),
            .bytes = n * (element_bytes(statistics) + element_bytes(dtype)),  // source read, target written
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const CastArgs args{.source = t.random(statistics, {n}), .target = t.zeros(dtype, {n})};
              return {[args](Stream& s) { cast(s, args); }};
            }});
}

// Adds a case over R response tokens that reads and writes `values` numbers per token.
template <class Prepare>
void add_token_case(BenchCaseList& list, const char* op, const char* part, int64_t values, const Prepare& prepare) {
  const int64_t tokens = list.sizes().tokens;
  const DType dtype = statistics_dtype(list.sizes().dtype);
  list.add_statistics({.op = op,
                       .part = part,
                       .shape = fmt::format("{} tokens", tokens),
                       .bytes = values * element_bytes(dtype) * tokens,
                       .prepare = [=](BenchTensors& t) -> BenchCall { return {prepare(t, dtype, tokens)}; }});
}

using Run = std::function<void(Stream&)>;

void add_advantages(BenchCaseList& list) {
  const std::vector<int32_t> offsets = bench_offsets(list.sizes().tokens, list.sizes().response);
  const int64_t responses = std::ssize(offsets) - 1;
  add_token_case(list, reward_shaping.name(), "", 3, [=](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    std::vector<uint8_t> terminated(static_cast<size_t>(responses), 1);
    const RewardShapingArgs args{.log_prob = t.random(dtype, {tokens}),
                                 .reference_log_prob = t.random(dtype, {tokens}),
                                 .scores = t.random(dtype, {responses}),
                                 .terminated = t.bytes(terminated),
                                 .offsets = t.int32s(offsets),
                                 .rewards = t.zeros(dtype, {tokens}),
                                 .kl_coef = 0.05,
                                 .reward_clip = 5};
    return [args](Stream& s) { reward_shaping(s, args); };
  });
  add_token_case(list, gae.name(), "", 4, [=](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const GaeArgs args{.rewards = t.random(dtype, {tokens}),
                       .values = t.random(dtype, {tokens}),
                       .offsets = t.int32s(offsets),
                       .advantages = t.zeros(dtype, {tokens}),
                       .returns = t.zeros(dtype, {tokens}),
                       .lambda = 0.95};
    return [args](Stream& s) { gae(s, args); };
  });
  add_token_case(list, centered_sums.name(), "", 1, [](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const CenteredSumsArgs args{.x = t.random(dtype, {tokens}), .sums = t.zeros(DType::f64, {2})};
    return [args](Stream& s) { centered_sums(s, args); };
  });
  add_token_case(list, whiten.name(), "", 2, [](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const WhitenArgs args{.x = t.random(dtype, {tokens})};
    return [args](Stream& s) { whiten(s, args); };
  });
}

void add_ppo_losses(BenchCaseList& list) {
  add_token_case(list, ppo_policy_loss.name(), "", 4, [](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const PpoPolicyLossArgs args{.log_prob = t.random(dtype, {tokens}, 0.1),
                                 .old_log_prob = t.random(dtype, {tokens}, 0.1),
                                 .advantages = t.random(dtype, {tokens}),
                                 .d_log_prob = t.zeros(dtype, {tokens}),
                                 .statistics = t.zeros(DType::f64, {8}),
                                 .max_ratio_deviation = t.zeros(DType::f64, {1})};
    return [args](Stream& s) { ppo_policy_loss(s, args); };
  });
  add_token_case(list, ppo_value_loss.name(), "", 4, [](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const PpoValueLossArgs args{.values = t.random(dtype, {tokens}),
                                .old_values = t.random(dtype, {tokens}),
                                .returns = t.random(dtype, {tokens}),
                                .d_values = t.zeros(dtype, {tokens}),
                                .statistics = t.zeros(DType::f64, {4})};
    return [args](Stream& s) { ppo_value_loss(s, args); };
  });
  add_token_case(list, affine.name(), "values", 2, [](BenchTensors& t, DType dtype, int64_t tokens) -> Run {
    const AffineArgs args{.x = t.random(dtype, {tokens}), .scale = -1};
    return [args](Stream& s) { affine(s, args); };
  });
}

void add_ranking_losses(BenchCaseList& list) {
  const DType dtype = statistics_dtype(list.sizes().dtype);
  const int64_t pairs = std::max<int64_t>(1, list.sizes().tokens / list.sizes().sequence / 2);
  const int64_t tokens = 2 * pairs * list.sizes().sequence;
  list.add_statistics({.op = ranking_loss.name(),
                       .shape = fmt::format("{} pairs", pairs),
                       .bytes = 5 * element_bytes(dtype) * pairs,  // two scores read; loss and two gradients written
                       .prepare = [=](BenchTensors& t) -> BenchCall {
                         const RankingLossArgs args{.scores = t.random(dtype, {2 * pairs}),
                                                    .loss = t.zeros(dtype, {pairs}),
                                                    .d_scores = t.zeros(dtype, {2 * pairs})};
                         return {[args](Stream& s) { ranking_loss(s, args); }};
                       }});
  const int64_t length = list.sizes().sequence;
  list.add_statistics({.op = token_ranking_loss.name(),
                       .shape = fmt::format("{} pairs of {} tokens", pairs, 2 * length),
                       .bytes = element_bytes(dtype) * (2 * tokens + pairs),  // scores read; gradients and loss written
                       .prepare = [=](BenchTensors& t) -> BenchCall {
                         const std::vector<int32_t> differences(static_cast<size_t>(pairs),
                                                                static_cast<int32_t>(length / 2));
                         const TokenRankingLossArgs args{.scores = t.random(dtype, {tokens}),
                                                         .offsets = t.int32s(bench_offsets(tokens, length)),
                                                         .first_difference = t.int32s(differences),
                                                         .loss = t.zeros(dtype, {pairs}),
                                                         .d_scores = t.zeros(dtype, {tokens})};
                         return {[args](Stream& s) { token_ranking_loss(s, args); }};
                       }});
}

}  // namespace

void add_optimizer_cases(BenchCaseList& list) {
  add_adamw(list);
  add_parameter_passes(list);
}

void add_loss_cases(BenchCaseList& list) {
  add_advantages(list);
  add_ppo_losses(list);
  add_ranking_losses(list);
}

}  // namespace tercet
