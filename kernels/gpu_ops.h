// The launchers of kernels/*.cu: each queues the op of its name on a stream of a GPU device (`cuda` or `emu`).
#pragma once

#include <span>

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

namespace tercet::gpu {

// What a library of kernels offers: launchers by the names of their ops, their types erased.
struct OpImplementation {
  const char* name;
  Device::Implementation function;
};

// Every op that this library implements.
std::span<const OpImplementation> op_implementations();

void adamw(Stream& stream, const AdamWArgs& args);
void add_scaled(Stream& stream, const AddScaledArgs& args);
void affine(Stream& stream, const AffineArgs& args);
void attention_backward(Stream& stream, const AttentionBackwardArgs& args);
void attention_forward(Stream& stream, const AttentionForwardArgs& args);
void cast(Stream& stream, const CastArgs& args);
void centered_sums(Stream& stream, const CenteredSumsArgs& args);
void dropout(Stream& stream, const DropoutArgs& args);
void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args);
void embedding_forward(Stream& stream, const EmbeddingForwardArgs& args);
void gae(Stream& stream, const GaeArgs& args);
void gather_rows(Stream& stream, const GatherRowsArgs& args);
void kv_cache_append(Stream& stream, const KvCacheAppendArgs& args);
void layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& args);
void layer_norm_forward(Stream& stream, const LayerNormForwardArgs& args);
void linear_backward(Stream& stream, const LinearBackwardArgs& args);
void linear_forward(Stream& stream, const LinearForwardArgs& args);
void moving_average(Stream& stream, const MovingAverageArgs& args);
void paged_attention(Stream& stream, const PagedAttentionArgs& args);
void ppo_policy_loss(Stream& stream, const PpoPolicyLossArgs& args);
void ppo_value_loss(Stream& stream, const PpoValueLossArgs& args);
void ranking_loss(Stream& stream, const RankingLossArgs& args);
void reward_shaping(Stream& stream, const RewardShapingArgs& args);
void sample(Stream& stream, const SampleArgs& args);
void scatter_add_rows(Stream& stream, const ScatterAddRowsArgs& args);
void sum_of_squares(Stream& stream, const SumOfSquaresArgs& args);
void token_log_prob_backward(Stream& stream, const TokenLogProbBackwardArgs& args);
void token_log_prob_forward(Stream& stream, const TokenLogProbForwardArgs& args);
void token_ranking_loss(Stream& stream, const TokenRankingLossArgs& args);
void whiten(Stream& stream, const WhitenArgs& args);

}  // namespace tercet::gpu
