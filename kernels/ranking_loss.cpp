#include "kernels/ranking_loss.h"

#include <cmath>

#include "kernels/cpu.h"

namespace tercet {
namespace {

double softplus(double x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }

// d softplus(x) / dx, without overflow.
double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}

template <class T>
void pair_losses(const RankingLossArgs& args) {
  const T* scores = args.scores.row<T>();
  T* loss = args.loss.row<T>();
  T* d_scores = elements_of<T>(args.d_scores);
  for (int64_t p = 0; p < args.loss.rows(); ++p) {
    const double margin = double{scores[2 * p + 1]} - double{scores[2 * p]};
    loss[p] = static_cast<T>(softplus(margin));
    if (d_scores == nullptr) continue;
    const double slope = args.scale * sigmoid(margin);
    d_scores[2 * p] = static_cast<T>(-slope);
    d_scores[2 * p + 1] = static_cast<T>(slope);
  }
}

void ranking_loss_cpu(Stream&, const RankingLossArgs& args) {
  require_rank(args.scores, 1, "scores");
  require_rank(args.loss, 1, "loss");
  const int64_t pairs = args.loss.rows();
  require_vector(args.scores, args.scores.dtype, 2 * pairs, "scores");
  require_vector(args.loss, statistics_dtype(args.scores.dtype), pairs, "loss");
  if (args.d_scores.defined()) require_vector(args.d_scores, args.scores.dtype, 2 * pairs, "d_scores");
  dispatch_floating(args.scores.dtype, [&]<class T>() { pair_losses<T>(args); });
}

// One pair of sequences [first_chosen, first_rejected) and [first_rejected, end).
template <class T>
void token_pair_loss(const TokenRankingLossArgs& args, int64_t pair) {
  const int32_t* offsets = args.offsets.row<int32_t>() + 2 * pair;
  const T* scores = args.scores.row<T>();
  T* d_scores = elements_of<T>(args.d_scores);
  const int64_t chosen_length = offsets[1] - offsets[0];
  const int64_t rejected_length = offsets[2] - offsets[1];
  const int64_t first = args.first_difference.row<int32_t>()[pair];
  const int64_t end = std::max(chosen_length, rejected_length);
  const double count = static_cast<double>(end - first);
  double sum = 0;
  if (d_scores != nullptr) std::fill(d_scores + offsets[0], d_scores + offsets[2], T{0});
  double held_chosen = 0;  // gradient of a score that is held has many terms: fp64, rounded once
  double held_rejected = 0;
  for (int64_t i = first; i < end; ++i) {
    const int64_t chosen = offsets[0] + std::min(i, chosen_length - 1);
    const int64_t rejected = offsets[1] + std::min(i, rejected_length - 1);
    const double margin = double{scores[rejected]} - double{scores[chosen]};
    sum += softplus(margin);
    if (d_scores == nullptr) continue;
    const double slope = args.scale * sigmoid(margin) / count;
    held_chosen = i < chosen_length ? slope : held_chosen + slope;
    held_rejected = i < rejected_length ? slope : held_rejected + slope;
    d_scores[chosen] = static_cast<T>(-held_chosen);
    d_scores[rejected] = static_cast<T>(held_rejected);
  }
  args.loss.row<T>()[pair] = static_cast<T>(sum / count);
}

void token_ranking_loss_cpu(Stream&, const TokenRankingLossArgs& args) {
  require_rank(args.scores, 1, "scores");
  require_rank(args.loss, 1, "loss");
  const int64_t pairs = args.loss.rows();
  const DType dtype = args.scores.dtype;
  require_vector(args.scores, dtype, args.scores.rows(), "scores");
  require_vector(args.loss, statistics_dtype(dtype), pairs, "loss");
  require_vector(args.first_difference, DType::i32, pairs, "first_difference");
  if (args.d_scores.defined()) require_vector(args.d_scores, dtype, args.scores.rows(), "d_scores");
  require_shape(args.offsets, DType::i32, {2 * pairs + 1}, "offsets");
  const int32_t* offsets = require_offsets(args.offsets, args.scores.rows());
  const int32_t* first = args.first_difference.row<int32_t>();
  for (int64_t p = 0; p < pairs; ++p) {
    const int32_t chosen = offsets[2 * p + 1] - offsets[2 * p];
    const int32_t rejected = offsets[2 * p + 2] - offsets[2 * p + 1];
    TERCET_REQUIRE(chosen > 0 && rejected > 0, "pair {} has an empty answer", p);
    TERCET_REQUIRE(first[p] >= 0 && first[p] < std::max(chosen, rejected),
                   "first_difference[{}] = {} lies outside answers of {} and {} tokens", p, first[p], chosen, rejected);
  }
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t p = 0; p < pairs; ++p) token_pair_loss<T>(args, p);
  });
}

}  // namespace

const Op<RankingLossArgs> ranking_loss{"ranking_loss", ranking_loss_cpu};
const Op<TokenRankingLossArgs> token_ranking_loss{"token_ranking_loss", token_ranking_loss_cpu};

}  // namespace tercet
