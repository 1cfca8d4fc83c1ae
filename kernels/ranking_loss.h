// Pairwise ranking losses of the reward model. softplus(x) = max(x, 0) + log1p(exp(-|x|)) never overflows.
#pragma once

#include "kernels/op.h"

namespace tercet {

// Row 2p of the batch is the chosen answer of pair p, row 2p+1 the rejected one.
// loss[p] = softplus(scores[2p+1] - scores[2p]);  d_scores is the gradient of `scale` sum_p loss[p].
struct RankingLossArgs {
  Tensor scores;    // [2P]
  Tensor loss;      // [P] written
  Tensor d_scores;  // [2P] written, or not given
  double scale = 1;
};
extern const Op<RankingLossArgs> ranking_loss;

// Per-token variant. Sequence 2p is the chosen answer, 2p+1 the rejected one, each given from its first token to its
// final id 2. For positions i from first_difference[p] to the end of the longer sequence, with the shorter one's last
// score held: loss[p] = mean_i softplus(rejected_i - chosen_i);  d_scores is the gradient of `scale` sum_p loss[p].
struct TokenRankingLossArgs {
  Tensor scores;            // [T] one per token
  Tensor offsets;           // [2P+1] int32
  Tensor first_difference;  // [P] int32; smaller than the length of the longer sequence
  Tensor loss;              // [P] written
  Tensor d_scores;          // [T] written, or not given
  double scale = 1;
};
extern const Op<TokenRankingLossArgs> token_ranking_loss;

}  // namespace tercet
