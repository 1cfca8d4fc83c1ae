#include "train/ppo_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace tercet {

uint64_t order_seed(uint64_t seed, PpoOrder use) {
  // Sites of the orders of prompts count epochs from 0; these lie at the other end.
  return RandomStream(seed, RandomPurpose::shuffle, ~static_cast<uint64_t>(use)).key();
}

std::vector<std::pair<int64_t, int64_t>> equal_parts(int64_t n, int64_t parts) {
  TERCET_REQUIRE(n >= 0 && parts >= 1, "{} items cut into {} parts", n, parts);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t begin = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t size = n / parts + (part < n % parts ? 1 : 0);
    ranges.emplace_back(begin, begin + size);
    begin += size;
  }
  return ranges;
}

double adapted_kl_coef(double kl_coef, double kl, double target, int64_t episodes, double horizon) {
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  return kl_coef * (1 + error * static_cast<double>(episodes) / horizon);
}

double Moments::sd() const { return std::sqrt(variance); }

Moments global_moments(std::span<const double> values, Communicator& communicator) {
  double sums[2] = {static_cast<double>(values.size()), 0};
  for (const double x : values) sums[1] += x;
  communicator.all_reduce_sum(sums);
  if (sums[0] == 0) return {};
  Moments moments{sums[0], sums[1] / sums[0], 0};
  double squares = 0;
  for (const double x : values) squares += (x - moments.mean) * (x - moments.mean);
  communicator.all_reduce_sum({&squares, 1});
  moments.variance = squares / moments.count;
  return moments;
}

double explained_variance(std::span<const double> returns, std::span<const double> values, Communicator& communicator) {
  TERCET_REQUIRE(returns.size() == values.size(), "{} returns and {} values", returns.size(), values.size());
  std::vector<double> errors(returns.size());
  for (size_t i = 0; i < errors.size(); ++i) errors[i] = returns[i] - values[i];
  const double variance = global_moments(returns, communicator).variance;
  const double unexplained = global_moments(errors, communicator).variance;
  return variance > 0 ? 1 - unexplained / variance : std::numeric_limits<double>::quiet_NaN();
}

double repetition(std::span<const int32_t> ids, size_t n) {
  if (n == 0 || ids.size() < n) return 0;
  const size_t total = ids.size() - n + 1;
  std::set<std::vector<int32_t>> distinct;
  for (size_t i = 0; i < total; ++i) distinct.emplace(ids.begin() + i, ids.begin() + i + n);
  return 1 - static_cast<double>(distinct.size()) / static_cast<double>(total);
}

}  // namespace tercet
