#include "catalogue.h"

#include "base/rng.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/paged_attention.h"
#include "kernels/ppo.h"
#include "kernels/ranking_loss.h"
#include "kernels/sample.h"
#include "kernels/token_log_prob.h"

namespace tercet::test {
namespace {

constexpr int64_t kHidden = 52;  // no multiple of a vector
constexpr int64_t kVocabulary = 211;
constexpr int64_t kHeads = 2;

// Sequences of 1, 2, 4, ... tokens and the rest: `size` tokens in all.
std::vector<int32_t> ragged_offsets(int64_t size) {
  std::vector<int32_t> offsets = {0};
  for (int64_t length = 1; offsets.back() < size; length *= 2)
    offsets.push_back(static_cast<int32_t>(std::min(size, offsets.back() + length)));
  return offsets;
}

std::vector<int32_t> counting(int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  return values;
}

std::vector<int64_t> sample_numbers(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = (int64_t{7} << 32) + static_cast<int64_t>(i) / 3;
  return values;
}

uint64_t test_key() { return RandomStream(5, RandomPurpose::test).key(); }

Outputs run_adamw(Runner& r, int64_t n) {
  const bool is_master = r.dtype() == statistics_dtype(r.dtype());
  const Tensor master = r.statistics(random_values(n, 1), {n});
  AdamWArgs args{.weights = is_master ? master : r.tensor(random_values(n, 1), {n}),
                 .gradient = r.statistics(random_values(n, 2), {n}),
                 .m = r.statistics(random_values(n, 3, 0.1), {n}),
                 .v = r.statistics(Values(static_cast<size_t>(n), 0.25), {n}),
                 .control = r.doubles({0.5, 0}),
                 .lr = 0.01,
                 .weight_decay = 0.1,
                 .step = 3};
  if (!is_master) args.master = master;
  adamw(r.stream(), args);
  return {r.read(args.weights), r.read(args.m), r.read(args.v), r.read(master), r.read(args.gradient)};
}

Outputs run_add_scaled(Runner& r, int64_t n) {
  const Tensor target = r.tensor(random_values(n * kHidden, 1), {n, kHidden}, kHidden + 3);
  add_scaled(r.stream(), {r.tensor(random_values(n * kHidden, 2), {n, kHidden}), target, 0.25});
  return {r.read(target)};
}

Outputs run_affine(Runner& r, int64_t n) {
  const Tensor x = r.tensor(random_values(n * kHidden, 1), {n, kHidden}, kHidden + 1);
  affine(r.stream(), {x, 1.5, -0.25});
  return {r.read(x)};
}

struct AttentionProblem {
  Tensor q, k, v, offsets, out, log_sum_exp;
};

AttentionProblem attention_problem(Runner& r, int64_t n) {
  AttentionProblem p;
  const Tensor qkv = r.tensor(random_values(n * 3 * kHidden, 1), {n, 3 * kHidden});
  p.q = qkv.column_range(0, kHidden);
  p.k = qkv.column_range(kHidden, kHidden);
  p.v = qkv.column_range(2 * kHidden, kHidden);
  p.offsets = r.int32s(ragged_offsets(n));
  p.out = r.empty({n, kHidden});
  p.log_sum_exp = r.empty_statistics({n, kHeads});
  attention_forward(r.stream(), {p.q, p.k, p.v, p.offsets, p.out, p.log_sum_exp, kHeads, 0.25});
  return p;
}

Outputs run_attention_forward(Runner& r, int64_t n) {
  const AttentionProblem p = attention_problem(r, n);
  return {r.read(p.out), r.read(p.log_sum_exp)};
}

Outputs run_attention_backward(Runner& r, int64_t n) {
  const AttentionProblem p = attention_problem(r, n);
  const Tensor d_out = r.tensor(random_values(n * kHidden, 2), {n, kHidden});
  const Tensor d_qkv = r.empty({n, 3 * kHidden});
  attention_backward(r.stream(),
                     {p.q, p.k, p.v, p.offsets, p.out, p.log_sum_exp, d_out, d_qkv.column_range(0, kHidden),
                      d_qkv.column_range(kHidden, kHidden), d_qkv.column_range(2 * kHidden, kHidden), kHeads, 0.25});
  return {r.read(d_qkv)};
}

// The source is fp64 on the CPU and fp32, which holds the same values, on a GPU.
Outputs run_cast(Runner& r, int64_t n) {
  const bool cpu = r.device().kind() == DeviceKind::cpu;
  Runner wide(device_name(r.device().kind()), cpu ? DType::f64 : DType::f32);
  const Values values = random_values(n * kHidden, 1);
  const Tensor source = wide.tensor(r.is_fp64() ? r.rounded(values) : values, {n, kHidden});
  const Tensor target = r.empty({n, kHidden}, kHidden + 1);
  cast(r.stream(), {source, target});
  return {r.read(target)};
}

Outputs run_centered_sums(Runner& r, int64_t n) {
  const Tensor sums = r.doubles({NAN, NAN});
  centered_sums(r.stream(), {r.tensor(random_values(n, 1), {n}), sums, 0.5});
  return {r.read(sums)};
}

Outputs run_dropout(Runner& r, int64_t n) {
  const Tensor x = r.tensor(random_values(n * kHidden, 1), {n, kHidden});
  dropout(r.stream(), {x, r.int64s(sample_numbers(n)), r.int32s(counting(n)), test_key(), 0.3});
  return {r.read(x)};
}

Outputs run_embedding_backward(Runner& r, int64_t n) {
  const Tensor d_table = r.statistics(random_values(20 * kHidden, 1), {20, kHidden});
  embedding_backward(
      r.stream(), {r.int32s(random_ids(n, 18, 2)), r.tensor(random_values(n * kHidden, 3), {n, kHidden}), d_table, 2});
  return {r.read(d_table)};
}

Outputs run_embedding_forward(Runner& r, int64_t n) {
  const Tensor out = r.tensor(random_values(n * kHidden, 3), {n, kHidden});
  embedding_forward(r.stream(), {r.int32s(random_ids(n, 18, 2)),
                                 r.tensor(random_values(20 * kHidden, 1), {20, kHidden}), out, 2, true});
  return {r.read(out)};
}

Outputs run_gae(Runner& r, int64_t n) {
  const Tensor advantages = r.empty({n});
  const Tensor returns = r.empty({n});
  gae(r.stream(), {r.tensor(random_values(n, 1), {n}), r.tensor(random_values(n, 2), {n}), r.int32s(ragged_offsets(n)),
                   advantages, returns, 0.99, 0.95});
  return {r.read(advantages), r.read(returns)};
}

Outputs run_gather_rows(Runner& r, int64_t n) {
  const Tensor out = r.empty({n, kHidden});
  gather_rows(r.stream(),
              {r.tensor(random_values(30 * kHidden, 1), {30, kHidden}), r.int32s(random_ids(n, 30, 2)), out});
  return {r.read(out)};
}

struct CacheProblem {
  Tensor offsets, lengths, block_table, k_cache, v_cache;
};

// Slots with 0, 1, 2, 4, ... new tokens after 5, 42, 79, ... cached ones; blocks in reverse order.
CacheProblem cache_problem(Runner& r, int64_t n) {
  std::vector<int32_t> offsets = ragged_offsets(n);
  offsets.insert(offsets.begin(), 0);
  const auto slots = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<int32_t> lengths(static_cast<size_t>(slots));
  int64_t blocks = 0;
  for (int64_t s = 0; s < slots; ++s) {
    const auto i = static_cast<size_t>(s);
    lengths[i] = static_cast<int32_t>(5 + 37 * s);
    blocks =
        std::max<int64_t>(blocks, (lengths[i] + offsets[i + 1] - offsets[i] + kKvBlockTokens - 1) / kKvBlockTokens);
  }
  std::vector<int32_t> table(static_cast<size_t>(slots * blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - 1 - i);
  const int64_t elements = slots * blocks * kKvBlockTokens * kHidden;
  return {r.int32s(offsets), r.int32s(lengths), r.int32s(table, {slots, blocks}),
          r.tensor(random_values(elements, 11), {slots * blocks, kKvBlockTokens, kHidden}),
          r.tensor(random_values(elements, 12), {slots * blocks, kKvBlockTokens, kHidden})};
}

Outputs run_kv_cache_append(Runner& r, int64_t n) {
  const CacheProblem p = cache_problem(r, n);
  kv_cache_append(r.stream(), {r.tensor(random_values(n * kHidden, 1), {n, kHidden}),
                               r.tensor(random_values(n * kHidden, 2), {n, kHidden}), p.offsets, p.lengths,
                               p.block_table, p.k_cache, p.v_cache});
  return {r.read(p.k_cache), r.read(p.v_cache)};
}

Outputs run_layer_norm_backward(Runner& r, int64_t n) {
  const Tensor x = r.tensor(random_values(n * kHidden, 1), {n, kHidden});
  const Tensor mean = r.empty_statistics({n});
  const Tensor rstd = r.empty_statistics({n});
  layer_norm_forward(r.stream(), {.x = x, .out = r.empty({n, kHidden}), .mean = mean, .rstd = rstd});
  LayerNormBackwardArgs args{.d_out = r.tensor(random_values(n * kHidden, 2), {n, kHidden}),
                             .sum = x,
                             .mean = mean,
                             .rstd = rstd,
                             .gamma = r.tensor(random_values(kHidden, 3), {kHidden}),
                             .d_residual = r.tensor(random_values(n * kHidden, 4), {n, kHidden}),
                             .d_sum = r.empty({n, kHidden}),
                             .d_gamma = r.statistics(random_values(kHidden, 5), {kHidden}),
                             .d_beta = r.statistics(random_values(kHidden, 6), {kHidden})};
  layer_norm_backward(r.stream(), args);
  return {r.read(args.d_sum), r.read(args.d_gamma), r.read(args.d_beta)};
}

// Rows with a mean of about 1: the error of one about 0 says little about its sum.
Outputs run_layer_norm_forward(Runner& r, int64_t n) {
  Values residual = random_values(n * kHidden, 2);
  for (double& value : residual) value += 1;
  LayerNormForwardArgs args{.x = r.tensor(random_values(n * kHidden, 1), {n, kHidden}),
                            .residual = r.tensor(residual, {n, kHidden}),
                            .sum = r.empty({n, kHidden}),
                            .gamma = r.tensor(random_values(kHidden, 3), {kHidden}),
                            .beta = r.tensor(random_values(kHidden, 4), {kHidden}),
                            .out = r.empty({n, kHidden}),
                            .mean = r.empty_statistics({n}),
                            .rstd = r.empty_statistics({n})};
  layer_norm_forward(r.stream(), args);
  return {r.read(args.sum), r.read(args.out), r.read(args.mean), r.read(args.rstd)};
}

Outputs run_linear_backward(Runner& r, int64_t n) {
  constexpr int64_t kOut = 77;
  LinearBackwardArgs args{.d_out = r.tensor(random_values(n * kOut, 1), {n, kOut}),
                          .x = r.tensor(random_values(n * kHidden, 2), {n, kHidden}),
                          .weight = r.tensor(random_values(kOut * kHidden, 3, 0.1), {kOut, kHidden}),
                          .out = r.tensor(random_values(n * kOut, 4), {n, kOut}),
                          .d_x = r.empty({n, kHidden}),
                          .d_weight = r.statistics(random_values(kOut * kHidden, 5), {kOut, kHidden}),
                          .d_bias = r.statistics(random_values(kOut, 6), {kOut}),
                          .activation = Activation::relu};
  linear_backward(r.stream(), args);
  return {r.read(args.d_out), r.read(args.d_x), r.read(args.d_weight), r.read(args.d_bias)};
}

Outputs run_linear_forward(Runner& r, int64_t n) {
  constexpr int64_t kOut = 77;
  LinearForwardArgs args{.x = r.tensor(random_values(n * kHidden, 1), {n, kHidden}, kHidden + 5),
                         .weight = r.tensor(random_values(kOut * kHidden, 2), {kOut, kHidden}),
                         .bias = r.tensor(random_values(kOut, 3), {kOut}),
                         .out = r.empty({n, kOut}, kOut + 1),
                         .pre_activation = r.empty({n, kOut}),
                         .activation = Activation::gelu};
  linear_forward(r.stream(), args);
  return {r.read(args.out), r.read(args.pre_activation)};
}

Outputs run_moving_average(Runner& r, int64_t n) {
  const Tensor average = r.statistics(random_values(n, 1), {n});
  moving_average(r.stream(), {average, r.tensor(random_values(n, 2), {n}), 0.9});
  return {r.read(average)};
}

Outputs run_paged_attention(Runner& r, int64_t n) {
  const CacheProblem p = cache_problem(r, n);
  const Tensor out = r.empty({n, kHidden});
  paged_attention(r.stream(), {r.tensor(random_values(n * kHidden, 1), {n, kHidden}), p.offsets, p.lengths,
                               p.block_table, p.k_cache, p.v_cache, out, kHeads, 0.25});
  return {r.read(out)};
}

Outputs run_ppo_policy_loss(Runner& r, int64_t n) {
  PpoPolicyLossArgs args{.log_prob = r.tensor(random_values(n, 1, 0.3), {n}),
                         .old_log_prob = r.tensor(random_values(n, 2, 0.3), {n}),
                         .advantages = r.tensor(random_values(n, 3), {n}),
                         .entropy = r.tensor(random_values(n, 4), {n}),
                         .d_log_prob = r.empty({n}),
                         .d_entropy = r.empty({n}),
                         .statistics = r.doubles(Values(8, 1.0)),
                         .max_ratio_deviation = r.doubles({0}),
                         .entropy_coef = 0.1,
                         .scale = 0.5};
  ppo_policy_loss(r.stream(), args);
  return {r.read(args.d_log_prob), r.read(args.d_entropy), r.read(args.statistics), r.read(args.max_ratio_deviation)};
}

Outputs run_ppo_value_loss(Runner& r, int64_t n) {
  PpoValueLossArgs args{.values = r.tensor(random_values(n, 1), {n}),
                        .old_values = r.tensor(random_values(n, 2), {n}),
                        .returns = r.tensor(random_values(n, 3), {n}),
                        .d_values = r.empty({n}),
                        .statistics = r.doubles(Values(4, 1.0)),
                        .scale = 0.5};
  ppo_value_loss(r.stream(), args);
  return {r.read(args.d_values), r.read(args.statistics)};
}

Outputs run_ranking_loss(Runner& r, int64_t n) {
  const Tensor loss = r.empty_statistics({n});
  const Tensor d_scores = r.empty({2 * n});
  ranking_loss(r.stream(), {r.tensor(random_values(2 * n, 1), {2 * n}), loss, d_scores, 0.5});
  return {r.read(loss), r.read(d_scores)};
}

Outputs run_reward_shaping(Runner& r, int64_t n) {
  const std::vector<int32_t> offsets = ragged_offsets(n);
  const auto responses = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<uint8_t> terminated(static_cast<size_t>(responses));
  for (size_t i = 0; i < terminated.size(); ++i) terminated[i] = i % 2;
  RewardShapingArgs args{.log_prob = r.tensor(random_values(n, 1), {n}),
                         .reference_log_prob = r.tensor(random_values(n, 2), {n}),
                         .scores = r.tensor(random_values(responses, 3, 5), {responses}),
                         .terminated = r.bytes(terminated),
                         .offsets = r.int32s(offsets),
                         .rewards = r.empty({n}),
                         .kl_coef = 0.1,
                         .score_mean = 0.5,
                         .score_sd = 2,
                         .reward_clip = 2,
                         .missing_eos_penalty = 1};
  reward_shaping(r.stream(), args);
  return {r.read(args.rewards)};
}

// The scratch of a drawn token says nothing; ids must agree in all dtypes unless two tokens are within rounding.
Outputs run_sample(Runner& r, int64_t n) {
  const Tensor ids = r.int32s(std::vector<int32_t>(static_cast<size_t>(n), -1));
  const Tensor log_prob = r.empty_statistics({n});
  sample(r.stream(), {.logits = r.tensor(random_values(n * kVocabulary, 1, 2), {n, kVocabulary}),
                      .samples = r.int64s(sample_numbers(n)),
                      .positions = r.int32s(counting(n)),
                      .ids = ids,
                      .log_prob = log_prob,
                      .scratch = r.empty({n, kVocabulary}),
                      .key = test_key(),
                      .temperature = 0.8,
                      .top_k = 50,
                      .top_p = 0.9});
  return {r.read(ids), r.read(log_prob)};
}

Outputs run_scatter_add_rows(Runner& r, int64_t n) {
  const Tensor out = r.tensor(random_values((2 * n + 1) * kHidden, 1), {2 * n + 1, kHidden});
  std::vector<int32_t> rows = counting(n);
  for (int32_t& row : rows) row = static_cast<int32_t>(2 * n) - 2 * row;
  scatter_add_rows(r.stream(), {r.tensor(random_values(n * kHidden, 2), {n, kHidden}), r.int32s(rows), out});
  return {r.read(out)};
}

Outputs run_sum_of_squares(Runner& r, int64_t n) {
  const Tensor sum = r.doubles({1});
  sum_of_squares(r.stream(), {r.tensor(random_values(n * 1001, 1), {n * 1001}), sum});
  return {r.read(sum)};
}

struct LogProbProblem {
  Tensor logits, targets, log_prob, log_sum_exp, entropy, likeliest;
};

LogProbProblem log_prob_problem(Runner& r, int64_t n) {
  LogProbProblem p{r.tensor(random_values(n * kVocabulary, 1, 3), {n, kVocabulary}),
                   r.int32s(random_ids(n, kVocabulary, 2)),
                   r.empty_statistics({n}),
                   r.empty_statistics({n}),
                   r.empty_statistics({n}),
                   r.empty_statistics({n})};
  token_log_prob_forward(r.stream(), {p.logits, p.targets, p.log_prob, p.log_sum_exp, p.entropy, p.likeliest, 0.7});
  return p;
}

Outputs run_token_log_prob_backward(Runner& r, int64_t n) {
  const LogProbProblem p = log_prob_problem(r, n);
  token_log_prob_backward(r.stream(),
                          {p.logits, p.targets, p.log_sum_exp, p.entropy, r.statistics(random_values(n, 3), {n}),
                           r.statistics(random_values(n, 4), {n}), 0.7});
  return {r.read(p.logits)};
}

Outputs run_token_log_prob_forward(Runner& r, int64_t n) {
  const LogProbProblem p = log_prob_problem(r, n);
  return {r.read(p.log_prob), r.read(p.log_sum_exp), r.read(p.entropy), r.read(p.likeliest)};
}

Outputs run_token_ranking_loss(Runner& r, int64_t n) {
  std::vector<int32_t> lengths;
  std::vector<int32_t> first_difference;
  int32_t tokens = 0;
  for (int64_t p = 0; p < n; ++p) {
    lengths.push_back(static_cast<int32_t>(1 + p % 5));
    lengths.push_back(static_cast<int32_t>(1 + p % 7));
    first_difference.push_back(std::max(lengths[lengths.size() - 2], lengths.back()) / 2);
    tokens += lengths[lengths.size() - 2] + lengths.back();
  }
  const Tensor loss = r.empty_statistics({n});
  const Tensor d_scores = r.empty({tokens});
  token_ranking_loss(r.stream(), {r.tensor(random_values(tokens, 1), {tokens}), r.int32s(offsets_of(lengths)),
                                  r.int32s(first_difference), loss, d_scores, 0.5});
  return {r.read(loss), r.read(d_scores)};
}

Outputs run_whiten(Runner& r, int64_t n) {
  const Tensor x = r.tensor(random_values(n, 1), {n});
  whiten(r.stream(), {x, 0.1, 2.5});
  return {r.read(x)};
}

constexpr double kRounding = 5e-7;  // a handful of fp32 roundings of 6e-8
constexpr double kSums = 1e-5;      // sums of up to a few hundred fp32 terms of both signs
constexpr const char* kRoundingReason = "a handful of roundings";
constexpr const char* kSumsReason = "sums of up to a few hundred terms";
constexpr const char* kExactReason = "copies only";

constexpr CatalogueEntry kCatalogue[] = {
    {"adamw", run_adamw, 2e-6, "a quotient and a root in fp32"},
    {"add_scaled", run_add_scaled, kRounding, kRoundingReason},
    {"affine", run_affine, kRounding, kRoundingReason},
    {"attention_backward", run_attention_backward, kSums, kSumsReason},
    {"attention_forward", run_attention_forward, kSums, kSumsReason},
    {"cast", run_cast, 0, kExactReason},
    {"centered_sums", run_centered_sums, 0, "fp64 sums of values that fp32 holds"},
    {"dropout", run_dropout, kRounding, kRoundingReason},
    {"embedding_backward", run_embedding_backward, kSums, kSumsReason},
    {"embedding_forward", run_embedding_forward, kRounding, kRoundingReason},
    {"gae", run_gae, kRounding, kRoundingReason},
    {"gather_rows", run_gather_rows, 0, kExactReason},
    {"kv_cache_append", run_kv_cache_append, 0, kExactReason},
    {"layer_norm_backward", run_layer_norm_backward, kSums, kSumsReason},
    {"layer_norm_forward", run_layer_norm_forward, 3e-6, "two sums over a row"},
    {"linear_backward", run_linear_backward, kSums, kSumsReason},
    {"linear_forward", run_linear_forward, kSums, kSumsReason},
    {"moving_average", run_moving_average, kRounding, kRoundingReason},
    {"paged_attention", run_paged_attention, kSums, kSumsReason},
    {"ppo_policy_loss", run_ppo_policy_loss, kRounding, kRoundingReason},
    {"ppo_value_loss", run_ppo_value_loss, kRounding, kRoundingReason},
    {"ranking_loss", run_ranking_loss, kRounding, kRoundingReason},
    {"reward_shaping", run_reward_shaping, kRounding, kRoundingReason},
    {"sample", run_sample, 3e-6, "log-probabilities; ids agree"},
    {"scatter_add_rows", run_scatter_add_rows, kRounding, kRoundingReason},
    {"sum_of_squares", run_sum_of_squares, 1e-13, "fp64 sums of values that fp32 holds, in another order"},
    {"token_log_prob_backward", run_token_log_prob_backward, 3e-6, "exp of a rounded exponent"},
    {"token_log_prob_forward", run_token_log_prob_forward, 3e-6, "exp of a rounded exponent"},
    {"token_ranking_loss", run_token_ranking_loss, kRounding, kRoundingReason},
    {"whiten", run_whiten, kRounding, kRoundingReason},
};

}  // namespace

Values joined(const Outputs& outputs) {
  Values all;
  for (const Values& part : outputs) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::span<const CatalogueEntry> catalogue() { return kCatalogue; }

}  // namespace tercet::test
