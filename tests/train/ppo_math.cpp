#include "train/ppo_math.h"

#include <doctest/doctest.h>

#include <cmath>

#include "train/ppo_experience.h"
#include "train/ppo_metrics.h"

namespace tercet {
namespace {

// A communicator of two ranks of which this is one: sums count the other rank's contribution, given beforehand.
class HalfOfTwo final : public Communicator {
 public:
  explicit HalfOfTwo(std::vector<std::vector<double>> others) : others_(std::move(others)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_reduce_sum(std::span<double> values) override {
    const std::vector<double>& other = others_.at(next_++);
    REQUIRE(other.size() == values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] += other[i];
  }
  void all_reduce_max(std::span<double>) override {}
  void all_reduce_sum(Stream&, const Tensor&) override {}
  void barrier() override {}

 private:
  std::vector<std::vector<double>> others_;
  size_t next_ = 0;
};

}  // namespace

TEST_CASE("The adaptive KL coefficient takes its golden values") {
  // beta 0.15, target 6 nats, 512 episodes, horizon 1e4; exact to rounding.
  CHECK(adapted_kl_coef(0.15, 12, 6, 512, 1e4) == doctest::Approx(0.151536).epsilon(1e-12));
  CHECK(adapted_kl_coef(0.15, 0, 6, 512, 1e4) == doctest::Approx(0.148464).epsilon(1e-12));
  CHECK(adapted_kl_coef(0.15, 6.6, 6, 512, 1e4) == doctest::Approx(0.150768).epsilon(1e-12));
  CHECK(adapted_kl_coef(0.15, -3, 6, 512, 1e4) == doctest::Approx(0.148464).epsilon(1e-12));
}

TEST_CASE("Explained variance takes its golden value and is undefined for constant returns") {
  const auto one = single_communicator();
  const std::vector<double> returns = {1, 2, 3, 4};
  CHECK(explained_variance(returns, std::vector<double>{1, 2, 2, 5}, *one) == doctest::Approx(0.6).epsilon(1e-12));
  CHECK(explained_variance(returns, returns, *one) == doctest::Approx(1));
  CHECK(std::isnan(explained_variance(std::vector<double>{2, 2}, std::vector<double>{1, 3}, *one)));
}

TEST_CASE("Moments are those of the values of all ranks") {
  // This rank holds 1 and 2, the other 3 and 6: mean 3, population variance 3.5.
  HalfOfTwo two({{2, 9}, {9}});
  const Moments moments = global_moments(std::vector<double>{1, 2}, two);
  CHECK(moments.count == 4);
  CHECK(moments.mean == doctest::Approx(3));
  CHECK(moments.variance == doctest::Approx(3.5));
  const auto one = single_communicator();
  CHECK(global_moments({}, *one).count == 0);
  CHECK(global_moments({}, *one).variance == 0);
  CHECK(global_moments(std::vector<double>{5}, *one).variance == 0);
}

TEST_CASE("Minibatches differ in size by at most one and cover every response once") {
  CHECK(equal_parts(10, 3) == std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {4, 7}, {7, 10}});
  CHECK(equal_parts(2, 3) == std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {2, 2}});
  CHECK(equal_parts(0, 1) == std::vector<std::pair<int64_t, int64_t>>{{0, 0}});
}

TEST_CASE("Repetition is the share of n-grams that came before") {
  CHECK(repetition(std::vector<int32_t>{5, 5, 5, 5}, 3) == doctest::Approx(0.5));
  CHECK(repetition(std::vector<int32_t>{5, 6, 7, 8}, 3) == 0);
  CHECK(repetition(std::vector<int32_t>{5, 6}, 3) == 0);
}

TEST_CASE("Metrics over nothing are absent and the others keep their order") {
  const auto one = single_communicator();
  MetricTable table;
  table.mean("b", 3, 2);
  table.mean("nothing", 0, 0);
  table.maximum("a", 4);
  table.minimum("c", -4);
  table.same("undefined", std::nan(""));
  table.same("n", int64_t{7});
  CHECK(table.reduce(*one).dump() == R"({"b":1.5,"a":4.0,"c":-4.0,"n":7})");
}

TEST_CASE("Values of a batch of rollouts go to their responses whatever the order") {
  std::vector<Rollout> rollouts(2);
  rollouts[0].ids = {2, 4, 5, 6};
  rollouts[0].prompt_length = 2;
  rollouts[1].ids = {2, 7, 2};
  rollouts[1].prompt_length = 1;
  Experience x = make_experience(rollouts);
  CHECK(x.offsets == std::vector<int32_t>{0, 2, 4});
  const std::vector<int64_t> order = {1, 0};
  const auto batches = rollout_batches(x.rollouts, order, {100, 100});
  REQUIRE(batches.size() == 1);
  // Rows before each response token: of [2, 7, 2 | 2, 4, 5, 6] these are 0, 1 and 4, 5.
  CHECK(batches[0].rows.rows == std::vector<int32_t>{0, 1, 4, 5});
  CHECK(batches[0].rows.targets == std::vector<int32_t>{7, 2, 5, 6});
  CHECK(batches[0].last_rows == std::vector<int32_t>{2, 6});
  batches[0].scatter(x, std::vector<double>{1, 2, 3, 4}, x.values);
  CHECK(x.values == std::vector<double>{3, 4, 1, 2});
  CHECK(batches[0].gather(x, x.values) == std::vector<double>{1, 2, 3, 4});
  CHECK(rollout_batches(x.rollouts, order, {4, 100}).size() == 2);
  CHECK_THROWS_WITH_AS(rollout_batches(x.rollouts, order, {3, 100}), doctest::Contains("--micro-batch-tokens"), Error);
}

}  // namespace tercet
