// The arithmetic of PPO that is done on the host, in fp64: orders, minibatches, statistics over ranks, the KL
// coefficient.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shard/communicator.h"

namespace tercet {

// The seed of a use of random orders that must differ from the order of prompts, which has the run's seed itself.
enum class PpoOrder : uint64_t {
  minibatches = 1,  // responses within one pass of an iteration
  ptx_blocks = 2,   // text blocks of the pre-training mix
};
uint64_t order_seed(uint64_t seed, PpoOrder use);

// [0, n) cut into `parts` consecutive ranges whose sizes differ by at most one, the larger ones first.
std::vector<std::pair<int64_t, int64_t>> equal_parts(int64_t n, int64_t parts);

// beta (1 + clip(kl / target - 1, -0.2, 0.2) episodes / horizon), kl in nats per sequence. D. Ziegler et al.,
// "Fine-tuning language models from human preferences", 2019.
double adapted_kl_coef(double kl_coef, double kl, double target, int64_t episodes, double horizon);

// Over all values of all ranks; mean and population variance are 0 when there are none.
struct Moments {
  double count = 0;
  double mean = 0;
  double variance = 0;

  double sd() const;
};
Moments global_moments(std::span<const double> values, Communicator& communicator);

// 1 - Var(returns - values) / Var(returns) over all ranks; not a number when the returns do not vary.
double explained_variance(std::span<const double> returns, std::span<const double> values, Communicator& communicator);

// 1 - (distinct n-grams) / (n-grams) of the ids; 0 when there are none.
double repetition(std::span<const int32_t> ids, size_t n);

}  // namespace tercet
