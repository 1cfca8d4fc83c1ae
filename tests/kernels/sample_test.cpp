#include "kernels/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "harness.h"

using namespace tercet;
using namespace tercet::test;

namespace {

const RandomStream kStream(3, RandomPurpose::sampling, 4);

struct Options {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
};

struct Drawn {
  std::vector<int> ids;
  Values log_prob;
};

// `rows` draws from the same logits, each with its own sample number.
Drawn draw(Runner& r, const Values& logits, int64_t rows, const Options& options) {
  const auto vocabulary = static_cast<int64_t>(logits.size());
  Values repeated;
  std::vector<int64_t> samples;
  for (int64_t s = 0; s < rows; ++s) {
    repeated.insert(repeated.end(), logits.begin(), logits.end());
    samples.push_back(s);
  }
  const Tensor ids = r.int32s(std::vector<int32_t>(static_cast<size_t>(rows), -1));
  const Tensor log_prob = r.empty_statistics({rows});
  SampleArgs args{.logits = r.tensor(repeated, {rows, vocabulary}),
                  .samples = r.int64s(samples),
                  .positions = r.int32s(std::vector<int32_t>(static_cast<size_t>(rows), 17)),
                  .ids = ids,
                  .log_prob = log_prob,
                  .key = kStream.key(),
                  .temperature = options.temperature,
                  .top_k = options.top_k,
                  .top_p = options.top_p};
  if (options.top_k > 0 || options.top_p < 1) args.scratch = r.empty({rows, vocabulary});
  sample(r.stream(), args);
  Drawn drawn;
  for (const double id : r.read(ids)) drawn.ids.push_back(static_cast<int>(id));
  drawn.log_prob = r.read(log_prob);
  return drawn;
}

// Which tokens top-k and then top-p leave, by the definition.
std::vector<bool> allowed(const Values& logits, const Options& options) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  double total = 0;
  for (const size_t j : order) total += std::exp(logits[j] / options.temperature);
  std::vector<bool> result(logits.size(), false);
  double reached = 0;
  for (const size_t j : order) {
    if (options.top_p < 1 && reached >= options.top_p * total) break;
    result[j] = true;
    reached += std::exp(logits[j] / options.temperature);
  }
  return result;
}

// The draw of the definition, in fp64.
int reference_draw(const Values& logits, int64_t sample, const Options& options) {
  const std::vector<bool> mask = allowed(logits, options);
  int best = -1;
  double best_value = -INFINITY;
  for (size_t j = 0; j < logits.size(); ++j) {
    const double u = kStream.uniform(static_cast<uint64_t>(sample), 17, static_cast<uint32_t>(j));
    const double value = logits[j] / options.temperature - std::log(-std::log(u));
    if (!mask[j] || value <= best_value) continue;
    best = static_cast<int>(j);
    best_value = value;
  }
  return best;
}

}  // namespace

TEST_CASE("a draw is the largest logit plus Gumbel noise of the random numbers of (sample, position, token)") {
  for (const int64_t vocabulary : {1, 2, 97, 1024, 2500}) {
    const Values logits = random_values(vocabulary, 1, 2);
    for (const Options& options :
         {Options{}, Options{0.7, 0, 1}, Options{1, 5, 1}, Options{1.3, 0, 0.8}, Options{0.9, 40, 0.5}})
      for_each_target([&](Runner& r) {
        const int64_t rows = r.is_emulated() ? 20 : 200;
        const Drawn drawn = draw(r, logits, rows, options);
        const Values held = r.rounded(logits);
        int different = 0;
        for (int64_t s = 0; s < rows; ++s)
          if (drawn.ids[static_cast<size_t>(s)] != reference_draw(held, s, options)) ++different;
        // In fp32 two tokens within 1e-6 of each other may change places: about one draw in 10^5.
        CHECK(different == 0);
      });
  }
}

TEST_CASE("the log-probability of a draw is that of the whole vocabulary at the temperature") {
  const Values logits = random_values(101, 1, 2);
  for (const Options& options : {Options{0.7, 0, 1}, Options{1.5, 3, 1}, Options{0, 0, 1}})
    for_each_target([&](Runner& r) {
      const Drawn drawn = draw(r, logits, 50, options);
      const Values held = r.rounded(logits);
      const double temperature = options.temperature == 0 ? 1 : options.temperature;
      double sum = 0;
      for (const double logit : held) sum += std::exp(logit / temperature);
      // fp32, which the log-probability of 16-bit logits is too.
      for (size_t s = 0; s < 50; ++s)
        check_close({drawn.log_prob[s]}, {held[static_cast<size_t>(drawn.ids[s])] / temperature - std::log(sum)},
                    r.is_fp64() ? 1e-13 : 1e-6, "log_prob");
    });
}

TEST_CASE("frequencies of draws follow the softmax (chi-square)") {
  const Values logits = {0.3, -1.2, 2.0, 0.0, 1.1, -0.4, 0.9, -3.0};
  for (const double temperature : {1.0, 0.7}) {
    for_each_target([&](Runner& r) {
      const Values held = r.rounded(logits);
      double sum = 0;
      for (const double logit : held) sum += std::exp(logit / temperature);
      const int64_t draws = r.is_emulated() ? 2000 : 20000;
      const Drawn drawn = draw(r, logits, draws, {temperature, 0, 1});
      double chi_square = 0;
      for (size_t j = 0; j < held.size(); ++j) {
        const double expected = static_cast<double>(draws) * std::exp(held[j] / temperature) / sum;
        const auto observed = static_cast<double>(std::count(drawn.ids.begin(), drawn.ids.end(), static_cast<int>(j)));
        chi_square += (observed - expected) * (observed - expected) / expected;
      }
      // 7 degrees of freedom: 24.3 is exceeded with probability 0.001; the draws are fixed by the seed.
      CHECK(chi_square < 24.3);
    });
  }
}

TEST_CASE("temperature 0 takes the first of the largest logits") {
  for_each_target([](Runner& r) {
    CHECK(draw(r, {1, 5, 2, 5, 5}, 3, {0, 0, 1}).ids == std::vector<int>{1, 1, 1});
    Values wide(3000, -1.0);
    wide[2047] = wide[2999] = 4;
    CHECK(draw(r, wide, 1, {0, 0, 1}).ids == std::vector<int>{2047});
    CHECK(draw(r, {-1e30, -1e30}, 1, {0, 0, 1}).ids == std::vector<int>{0});
  });
}

TEST_CASE("ties at the limit of top-k and top-p are kept by smallest index") {
  const Values logits = {1, 2, 1, 2, 1, 0, 1};
  struct Case {
    Options options;
    std::vector<int> kept;
  };
  const double e = std::exp(1.0);
  const double total = 2 * e * e + 4 * e + 1;
  for (const auto& [options, kept] :
       {Case{{1, 1, 1}, {1}}, Case{{1, 3, 1}, {0, 1, 3}}, Case{{1, 4, 1}, {0, 1, 2, 3}},
        Case{{1, 100, 1}, {0, 1, 2, 3, 4, 5, 6}}, Case{{1, 0, (2 * e * e + 1.5 * e) / total}, {0, 1, 2, 3}},
        Case{{1, 0, 1e-9}, {1}}, Case{{1, 3, 0.9}, {0, 1, 3}}, Case{{1, 3, 0.5}, {1, 3}}})
    for_each_target([&, options = options, kept = kept](Runner& r) {
      const Drawn drawn = draw(r, logits, r.is_emulated() ? 100 : 500, options);
      std::vector<int> seen = drawn.ids;
      std::sort(seen.begin(), seen.end());
      seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
      CHECK(seen == kept);
    });
}

TEST_CASE("top-p that needs more tokens than are sorted first keeps exactly the smallest set") {
  Values logits(5000);
  for (size_t j = 0; j < logits.size(); ++j) logits[j] = -1e-4 * static_cast<double>((j * 1237) % 5000);
  const Options options{1, 0, 0.6};
  for_each_target([&](Runner& r) {
    // In 16 bits many logits are equal: the last tokens kept are told apart by their indices.
    const Values held = r.rounded(logits);
    const std::vector<bool> mask = allowed(held, options);
    const int64_t rows = r.is_emulated() ? 10 : 300;
    const Drawn drawn = draw(r, logits, rows, options);
    for (int64_t s = 0; s < rows; ++s) {
      CHECK(mask[static_cast<size_t>(drawn.ids[static_cast<size_t>(s)])]);
      CHECK(drawn.ids[static_cast<size_t>(s)] == reference_draw(held, s, options));
    }
  });
}

TEST_CASE("draws from large vocabularies are those of the definition") {
  for (const int64_t vocabulary : {8209, 50272}) {
    const Values logits = random_values(vocabulary, 1, 2);
    for (const Options& options : {Options{0.7, 0, 1}, Options{1, 50, 0.9}, Options{1.2, 0, 0.95}, Options{0, 0, 1}})
      for_each_target([&](Runner& r) {
        const Values held = r.rounded(logits);
        const Drawn drawn = draw(r, logits, 2, options);
        const auto largest = std::max_element(held.begin(), held.end()) - held.begin();
        for (int64_t s = 0; s < 2; ++s)
          CHECK(drawn.ids[static_cast<size_t>(s)] ==
                (options.temperature == 0 ? largest : reference_draw(held, s, options)));
      });
  }
}

TEST_CASE("the tokens of the limit that are kept are the first ones, wherever they lie in a large vocabulary") {
  // 3000 equal tokens among smaller ones: which of them are kept is seen by making all others impossible.
  Values logits(9001, -30.0);
  std::vector<int> equal;
  for (int j = 0; j < 3000; ++j) equal.push_back((j * 3 + 5) % 9001);
  std::sort(equal.begin(), equal.end());
  for (const int j : equal) logits[static_cast<size_t>(j)] = 2;
  for (const Options& options : {Options{1, 1, 1}, Options{1, 1000, 1}, Options{1, 0, 0.25}, Options{1, 2000, 0.5}})
    for_each_target([&](Runner& r) {
      const int64_t kept = options.top_k == 1 ? 1 : (options.top_p == 0.25 ? 750 : 1000);
      const Drawn drawn = draw(r, logits, r.is_emulated() ? 5 : 100, options);
      for (const int id : drawn.ids) {
        const auto place = std::lower_bound(equal.begin(), equal.end(), id);
        REQUIRE(place != equal.end());
        CHECK(*place == id);
        CHECK(place - equal.begin() < kept);
      }
      for (size_t s = 0; s < drawn.ids.size(); ++s)
        CHECK(drawn.ids[s] == reference_draw(logits, static_cast<int64_t>(s), options));
    });
}

TEST_CASE("a row with a NaN gives a NaN log-probability and leaves other rows alone") {
  for_each_target([](Runner& r) {
    for (const Options& options : {Options{}, Options{1, 2, 0.9}}) {
      const Drawn bad = draw(r, {0, NAN, 1, 2}, 1, options);
      CHECK(bad.ids[0] >= 0);
      CHECK(bad.ids[0] < 4);
      CHECK(std::isnan(bad.log_prob[0]));
    }
  });
}

TEST_CASE("sampling refuses impossible options and a scratch without need") {
  for_each_target([](Runner& r) {
    const auto run = [&](const Options& options, const Tensor& scratch) {
      sample(r.stream(), {.logits = r.zeros({2, 3}),
                          .samples = r.int64s({0, 1}),
                          .positions = r.int32s({0, 0}),
                          .ids = r.int32s({0, 0}),
                          .log_prob = r.zero_statistics({2}),
                          .scratch = scratch,
                          .temperature = options.temperature,
                          .top_k = options.top_k,
                          .top_p = options.top_p});
    };
    const Tensor scratch = r.zeros({2, 3});
    CHECK_NOTHROW(run({}, Tensor()));
    CHECK_NOTHROW(run({1, 2, 1}, scratch));
    CHECK_THROWS_AS(run({1, 2, 1}, Tensor()), Error);
    CHECK_THROWS_AS(run({}, scratch), Error);
    CHECK_THROWS_AS(run({-1, 0, 1}, Tensor()), Error);
    CHECK_THROWS_AS(run({1, -1, 1}, Tensor()), Error);
    CHECK_THROWS_AS(run({1, 0, 0}, scratch), Error);
    CHECK_THROWS_AS(run({1, 0, 1.5}, Tensor()), Error);
  });
}
