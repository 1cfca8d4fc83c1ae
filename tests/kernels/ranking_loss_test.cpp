#include "kernels/ranking_loss.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

TEST_CASE("the ranking loss is finite and right at margins of 0, 1, 100 and 1000 of both signs") {
  for (const Json& golden : rlhf_goldens().at("ranking_loss").at("margins").as_array())
    for_each_wide_target([&](Runner& r) {
      const Tensor loss = r.empty({1});
      const Tensor d_scores = r.empty({2});
      ranking_loss(r.stream(), {r.tensor({golden.at("margin").as_double(), 0}, {2}), loss, d_scores, 1});
      const double expected = golden.at("loss").as_double();
      CHECK(std::isfinite(r.read(loss)[0]));
      // fp32 holds 3.7e-44 as a subnormal number of two digits.
      CHECK(r.read(loss)[0] == doctest::Approx(expected).epsilon(expected < 1e-40 ? r.tolerance(1e-14, 0.02).element
                                                                                  : r.tolerance(1e-14, 1e-7).element));
      const double slope = golden.at("gradient_margin").as_double();
      check_close(r.read(d_scores), {slope, -slope}, r.tolerance(1e-14, 1e-7), "gradient");
    });
}

TEST_CASE("pairs of scores give the golden losses and gradients") {
  const Json& golden = rlhf_goldens().at("ranking_loss").at("pairs");
  const Values chosen = numbers(golden.at("chosen"));
  const Values rejected = numbers(golden.at("rejected"));
  const Values d_chosen = numbers(golden.at("gradient_chosen"));
  const Values d_rejected = numbers(golden.at("gradient_rejected"));
  Values scores;
  Values gradient;
  for (size_t p = 0; p < chosen.size(); ++p) {
    scores.insert(scores.end(), {chosen[p], rejected[p]});
    gradient.insert(gradient.end(), {d_chosen[p], d_rejected[p]});
  }
  const auto pairs = static_cast<int64_t>(chosen.size());
  for_each_wide_target([&](Runner& r) {
    const Tensor loss = r.empty({pairs});
    const Tensor d_scores = r.empty({2 * pairs});
    ranking_loss(r.stream(), {r.tensor(scores, {2 * pairs}), loss, d_scores, 1 / static_cast<double>(pairs)});
    double mean = 0;
    for (const double value : r.read(loss)) mean += value / static_cast<double>(pairs);
    check_close({mean}, {golden.at("loss").as_double()}, r.tolerance(1e-14, 1e-6), "loss");
    check_close(r.read(d_scores), gradient, r.tolerance(1e-14, 1e-7), "gradient");
  });
}

TEST_CASE("the per-token ranking loss gives the golden losses and gradients, the shorter answer's score held") {
  const Json& golden = rlhf_goldens().at("ranking_loss").at("tokens");
  Values scores;
  Values losses;
  Values gradient;
  std::vector<int32_t> lengths;
  std::vector<int32_t> first;
  for (const Json& pair : golden.at("pairs").as_array()) {
    for (const char* side : {"chosen", "rejected"}) {
      const Values values = numbers(pair.at(side));
      scores.insert(scores.end(), values.begin(), values.end());
      lengths.push_back(static_cast<int32_t>(values.size()));
      const Values slopes = numbers(pair.at(std::string("gradient_") + side));
      gradient.insert(gradient.end(), slopes.begin(), slopes.end());
    }
    first.push_back(static_cast<int32_t>(pair.at("first_difference").as_int()));
    losses.push_back(pair.at("loss").as_double());
  }
  const auto pairs = static_cast<int64_t>(first.size());
  const auto tokens = static_cast<int64_t>(scores.size());
  CHECK(losses[0] == doctest::Approx(0.4029047520).epsilon(1e-9));
  for_each_wide_target([&](Runner& r) {
    const Tensor loss = r.empty({pairs});
    const Tensor d_scores = r.empty({tokens});
    token_ranking_loss(r.stream(), {r.tensor(scores, {tokens}), r.int32s(offsets_of(lengths)), r.int32s(first), loss,
                                    d_scores, 1 / static_cast<double>(pairs)});
    check_close(r.read(loss), losses, r.tolerance(1e-14, 1e-6), "losses");
    check_close(r.read(d_scores), gradient, r.tolerance(1e-14, 1e-7), "gradient of the mean over pairs");
  });
}

TEST_CASE("a first difference beyond the shorter answer compares its held score alone") {
  for_each_target([](Runner& r) {
    const Tensor loss = r.empty_statistics({1});
    const Tensor d_scores = r.empty({5});
    token_ranking_loss(r.stream(),
                       {r.tensor({1, 2, 0.5, 0.25, 3}, {5}), r.int32s({0, 2, 5}), r.int32s({2}), loss, d_scores, 2});
    check_close(r.read(loss), {softplus(1)}, r.tolerance(1e-14, 1e-6), "loss");
    const double slope = 2 / (1 + std::exp(-1.0));
    check_close(r.read(d_scores), {0, -slope, 0, 0, slope}, r.tolerance(1e-14, 1e-6), "gradient");
  });
}

TEST_CASE("the per-token ranking loss's gradients are those of central differences") {
  const std::vector<int32_t> lengths = {3, 6, 5, 1, 4, 4};
  const std::vector<int32_t> first = {1, 0, 2};
  const Values scores = random_values(23, 1);
  const std::vector<int32_t> offsets = offsets_of(lengths);
  const auto loss_of = [&](const Values& x) {
    double total = 0;
    for (size_t p = 0; p < 3; ++p) {
      const int32_t end = std::max(lengths[2 * p], lengths[2 * p + 1]);
      for (int32_t i = first[p]; i < end; ++i) {
        const auto chosen = static_cast<size_t>(offsets[2 * p] + std::min(i, lengths[2 * p] - 1));
        const auto rejected = static_cast<size_t>(offsets[2 * p + 1] + std::min(i, lengths[2 * p + 1] - 1));
        total += softplus(x[rejected] - x[chosen]) / (end - first[p]);
      }
    }
    return total;
  };
  for_each_target([&](Runner& r) {
    const Tensor loss = r.empty_statistics({3});
    const Tensor d_scores = r.empty({23});
    token_ranking_loss(r.stream(), {r.tensor(scores, {23}), r.int32s(offsets), r.int32s(first), loss, d_scores});
    const Values held = r.rounded(scores);
    check_close(r.read(d_scores), numeric_gradient(loss_of, held), r.tolerance(1e-9, 1e-6), "gradient");
    const Values losses = r.read(loss);
    CHECK(losses[0] + losses[1] + losses[2] == doctest::Approx(loss_of(held)).epsilon(1e-6));
    const Tensor again = r.empty_statistics({3});
    token_ranking_loss(r.stream(), {r.tensor(scores, {23}), r.int32s(offsets), r.int32s(first), again, Tensor()});
    check_equal(r.read(again), losses, "without gradient");
  });
}

TEST_CASE("ranking losses refuse wrong shapes") {
  for_each_target([](Runner& r) {
    const Tensor loss = r.zero_statistics({1});
    CHECK_THROWS_AS(ranking_loss(r.stream(), {r.zeros({3}), loss, Tensor()}), Error);
    CHECK_THROWS_AS(ranking_loss(r.stream(), {r.zeros({2}), loss, r.zeros({3})}), Error);
    const Tensor first = r.int32s({0});
    CHECK_THROWS_AS(token_ranking_loss(r.stream(), {r.zeros({4}), r.int32s({0, 4}), first, loss, Tensor()}), Error);
    CHECK_THROWS_AS(token_ranking_loss(r.stream(), {r.zeros({4}), r.int32s({0, 1, 4}), first, loss, r.zeros({3})}),
                    Error);
  });
}

TEST_CASE("on the CPU ranking losses refuse answers without tokens and differences beyond them") {
  for_each_cpu_target([](Runner& r) {
    const Tensor loss = r.zeros({1});
    const auto run = [&](const std::vector<int32_t>& offsets, int32_t first) {
      token_ranking_loss(r.stream(), {r.zeros({4}), r.int32s(offsets), r.int32s({first}), loss, Tensor()});
    };
    CHECK_NOTHROW(run({0, 1, 4}, 2));
    CHECK_THROWS_AS(run({0, 1, 4}, 3), Error);
    CHECK_THROWS_AS(run({0, 1, 4}, -1), Error);
    CHECK_THROWS_AS(run({0, 0, 4}, 0), Error);
    CHECK_THROWS_AS(run({0, 2, 3}, 0), Error);
  });
}
