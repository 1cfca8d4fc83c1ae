#include "kernels/attention.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "harness.h"
#include "kernels/paged_attention.h"

using namespace tercet;
using namespace tercet::test;

namespace {

struct Problem {
  std::vector<int32_t> offsets;
  int64_t tokens, heads, head_size;
  double scale;
  Values q, k, v;

  int64_t hidden() const { return heads * head_size; }
};

Problem problem(const std::vector<int32_t>& lengths, int64_t heads, int64_t head_size, double spread = 1) {
  Problem p{offsets_of(lengths), 0, heads, head_size, 1 / std::sqrt(static_cast<double>(head_size)), {}, {}, {}};
  p.tokens = p.offsets.back();
  p.q = random_values(p.tokens * p.hidden(), 1, spread);
  p.k = random_values(p.tokens * p.hidden(), 2);
  p.v = random_values(p.tokens * p.hidden(), 3);
  return p;
}

// The problem with inputs as the runner holds them.
Problem rounded(const Runner& r, Problem p) {
  for (Values* values : {&p.q, &p.k, &p.v}) *values = r.rounded(*values);
  return p;
}

struct Reference {
  Values out, log_sum_exp;
};

// The definition, one query at a time.
Reference reference(const Problem& p) {
  Reference result{Values(p.q.size()), Values(static_cast<size_t>(p.tokens * p.heads))};
  const int64_t hidden = p.hidden();
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = p.offsets[b]; i < p.offsets[b + 1]; ++i) {
        const auto at = [&](int64_t row, int64_t d) { return static_cast<size_t>(row * hidden + h * p.head_size + d); };
        Values scores;
        double max = -INFINITY;
        for (int64_t j = p.offsets[b]; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < p.head_size; ++d) score += p.scale * p.q[at(i, d)] * p.k[at(j, d)];
          scores.push_back(score);
          max = std::max(max, score);
        }
        double sum = 0;
        for (const double score : scores) sum += std::exp(score - max);
        result.log_sum_exp[static_cast<size_t>(i * p.heads + h)] = max + std::log(sum);
        for (size_t j = 0; j < scores.size(); ++j)
          for (int64_t d = 0; d < p.head_size; ++d)
            result.out[at(i, d)] +=
                std::exp(scores[j] - max) / sum * p.v[at(p.offsets[b] + static_cast<int64_t>(j), d)];
      }
  return result;
}

struct Tensors {
  Tensor qkv, q, k, v, offsets, out, log_sum_exp;
};

// Runs the forward pass on slices of one [T, 3H] tensor.
Tensors forward(Runner& r, const Problem& p) {
  const int64_t hidden = p.hidden();
  Tensors t;
  t.qkv = r.empty({p.tokens, 3 * hidden});
  t.q = t.qkv.column_range(0, hidden);
  t.k = t.qkv.column_range(hidden, hidden);
  t.v = t.qkv.column_range(2 * hidden, hidden);
  for (const auto& [view, values] : {std::pair{t.q, &p.q}, std::pair{t.k, &p.k}, std::pair{t.v, &p.v}}) {
    const Tensor source = r.tensor(*values, {p.tokens, hidden});
    for (int64_t i = 0; i < p.tokens; ++i)
      r.stream().copy_on_device(view.row_range(i, 1).data, source.row_range(i, 1).data,
                                static_cast<size_t>(hidden) * dtype_size(r.dtype()));
  }
  t.offsets = r.int32s(p.offsets);
  t.out = r.empty({p.tokens, hidden});
  t.log_sum_exp = r.empty_statistics({p.tokens, p.heads});
  attention_forward(r.stream(), {t.q, t.k, t.v, t.offsets, t.out, t.log_sum_exp, p.heads, p.scale});
  return t;
}

struct Gradients {
  Values q, k, v;
};

Gradients backward(Runner& r, const Problem& p, const Tensors& t, const Values& d_out) {
  const int64_t hidden = p.hidden();
  const Tensor d_qkv = r.empty({p.tokens, 3 * hidden});
  const Tensor d_q = d_qkv.column_range(0, hidden);
  const Tensor d_k = d_qkv.column_range(hidden, hidden);
  const Tensor d_v = d_qkv.column_range(2 * hidden, hidden);
  attention_backward(r.stream(), {t.q, t.k, t.v, t.offsets, t.out, t.log_sum_exp, r.tensor(d_out, {p.tokens, hidden}),
                                  d_q, d_k, d_v, p.heads, p.scale});
  return {r.read(d_q), r.read(d_k), r.read(d_v)};
}

// The definition, one pair of query and key at a time.
Gradients reference_gradients(const Problem& p, const Values& d_out) {
  const int64_t hidden = p.hidden();
  const Reference forward_values = reference(p);
  Gradients expected{Values(p.q.size()), Values(p.q.size()), Values(p.q.size())};
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = p.offsets[b]; i < p.offsets[b + 1]; ++i)
        for (int64_t j = p.offsets[b]; j <= i; ++j) {
          const auto at = [&](int64_t row, int64_t d) {
            return static_cast<size_t>(row * hidden + h * p.head_size + d);
          };
          double score = 0;
          double d_p = 0;
          double delta = 0;
          for (int64_t d = 0; d < p.head_size; ++d) {
            score += p.scale * p.q[at(i, d)] * p.k[at(j, d)];
            d_p += d_out[at(i, d)] * p.v[at(j, d)];
            delta += d_out[at(i, d)] * forward_values.out[at(i, d)];
          }
          const double weight = std::exp(score - forward_values.log_sum_exp[static_cast<size_t>(i * p.heads + h)]);
          for (int64_t d = 0; d < p.head_size; ++d) {
            expected.v[at(j, d)] += weight * d_out[at(i, d)];
            expected.q[at(i, d)] += p.scale * weight * (d_p - delta) * p.k[at(j, d)];
            expected.k[at(j, d)] += p.scale * weight * (d_p - delta) * p.q[at(i, d)];
          }
        }
  return expected;
}

}  // namespace

TEST_CASE("attention is the softmax of scaled causal scores in each sequence and head") {
  for (const Problem& p :
       {problem({}, 2, 4), problem({1}, 1, 2), problem({1, 1, 1}, 3, 6), problem({0, 5, 0, 17}, 2, 20),
        problem({63, 65}, 2, 32), problem({129, 3}, 1, 64), problem({300}, 2, 10), problem({128, 256}, 1, 16),
        problem({40}, 2, 80), problem({2, 31, 33}, 2, 128)}) {
    for_each_target([&](Runner& r) {
      const Reference expected = reference(rounded(r, p));
      const Tensors t = forward(r, p);
      // fp32: a score is a sum of up to 128 products, and weights are exp of it.
      check_close(r.read(t.out), expected.out, r.tolerance(1e-13, 2e-6), "out");
      check_close(r.read(t.log_sum_exp), expected.log_sum_exp, r.tolerance(1e-13, 2e-6), "log_sum_exp");
    });
  }
}

TEST_CASE("attention with scores of several hundred is finite and right") {
  // The scale of head size 16 is a power of two: scaling q, which rounds to 16 bits, changes no score.
  const Problem p = problem({150}, 1, 16, 200);
  for_each_target([&](Runner& r) {
    const Reference expected = reference(rounded(r, p));
    // Scores of 1000 carry an fp32 rounding of 6e-5, and the weights with them.
    check_close(r.read(forward(r, p).out), expected.out, r.tolerance(1e-11, 1e-3), "out");
  });
}

TEST_CASE("attention without log_sum_exp gives the same output") {
  const Problem p = problem({70, 5}, 2, 8);
  for_each_target([&](Runner& r) {
    const Tensors t = forward(r, p);
    const Tensor out = r.empty({p.tokens, p.hidden()});
    attention_forward(r.stream(), {t.q, t.k, t.v, t.offsets, out, Tensor(), p.heads, p.scale});
    check_equal(r.read(out), r.read(t.out), "out");
  });
}

TEST_CASE("a sequence's attention does not depend on its neighbours in the batch") {
  const Problem alone = problem({50}, 2, 8);
  for_each_target([&](Runner& r) {
    const Values single = r.read(forward(r, alone).out);
    Problem both = problem({50, 70}, 2, 8);
    for (auto [target, source] :
         {std::pair{&both.q, &alone.q}, std::pair{&both.k, &alone.k}, std::pair{&both.v, &alone.v}})
      std::copy(source->begin(), source->end(), target->begin());
    Values first = r.read(forward(r, both).out);
    first.resize(single.size());
    check_equal(first, single, "first sequence");
  });
}

TEST_CASE("attention's gradients are those of central differences") {
  for (const Problem& p : {problem({1, 2, 7}, 2, 4), problem({3, 0, 19}, 1, 6)}) {
    const Values d_out = random_values(p.tokens * p.hidden(), 9);
    const auto gradient = [&](Values Problem::*member) {
      return numeric_gradient(
          [&](const Values& x) {
            Problem changed = p;
            changed.*member = x;
            return weighted_sum(reference(changed).out, d_out);
          },
          p.*member);
    };
    const Gradients expected{gradient(&Problem::q), gradient(&Problem::k), gradient(&Problem::v)};
    for_each_wide_target([&](Runner& r) {
      const Gradients actual = backward(r, p, forward(r, p), d_out);
      const Tolerance tolerance = r.tolerance(1e-8, 2e-6);
      check_close(actual.q, expected.q, tolerance, "d_q");
      check_close(actual.k, expected.k, tolerance, "d_k");
      check_close(actual.v, expected.v, tolerance, "d_v");
    });
  }
}

TEST_CASE("attention's gradients of long sequences are those of the definition") {
  const Problem p = problem({161, 290}, 2, 6);
  const Values d_out = random_values(p.tokens * p.hidden(), 9);
  const Gradients expected = reference_gradients(p, d_out);
  for_each_wide_target([&](Runner& r) {
    const Gradients actual = backward(r, p, forward(r, p), d_out);
    // fp32: sums of up to 290 rounded terms.
    const Tolerance tolerance = r.tolerance(1e-12, 3e-6);
    check_close(actual.q, expected.q, tolerance, "d_q");
    check_close(actual.k, expected.k, tolerance, "d_k");
    check_close(actual.v, expected.v, tolerance, "d_v");
  });
}

TEST_CASE("attention reproduces PyTorch's values and gradients") {
  for (const Json& golden : kernel_goldens().at("attention").as_array()) {
    Problem p{integers(golden.at("offsets")), 0,
              golden.at("heads").as_int(),    golden.at("head_size").as_int(),
              golden.at("scale").as_double(), numbers(golden.at("q")),
              numbers(golden.at("k")),        numbers(golden.at("v"))};
    p.tokens = p.offsets.back();
    for_each_wide_target([&](Runner& r) {
      const Tensors t = forward(r, p);
      const Tolerance tolerance = r.tolerance(1e-13, 2e-6);
      check_close(r.read(t.out), numbers(golden.at("output")), tolerance, "output");
      check_close(r.read(t.log_sum_exp), numbers(golden.at("logsumexp")), tolerance, "logsumexp");
      const Gradients actual = backward(r, p, t, numbers(golden.at("gradient_output")));
      check_close(actual.q, numbers(golden.at("gradient_q")), tolerance, "gradient of q");
      check_close(actual.k, numbers(golden.at("gradient_k")), tolerance, "gradient of k");
      check_close(actual.v, numbers(golden.at("gradient_v")), tolerance, "gradient of v");
    });
  }
}

TEST_CASE("attention against the cache, token by token or in pieces, equals attention over the whole sequence") {
  const Problem p = problem({40, 1, 97}, 2, 12);
  const int64_t hidden = p.hidden();
  for_each_target([&](Runner& r) {
    const Reference expected = reference(rounded(r, p));
    for (const int32_t piece : {1, 2, 33, 97}) {
      const Tensor k_cache = r.empty({16, kKvBlockTokens, hidden});
      const Tensor v_cache = r.empty({16, kKvBlockTokens, hidden});
      const Tensor table = r.int32s({3, 9, 0, 5, 1, 7, 8, 11, 15, 2, 4, 12}, {3, 4});
      std::vector<int32_t> lengths(3, 0);
      Values actual(p.q.size(), NAN);
      // The emulator gets the small pieces for the last tokens only.
      int32_t most = r.is_emulated() ? std::max(piece, 85) : piece;
      for (bool more = true; more; most = piece) {
        std::vector<int32_t> counts;
        std::vector<int64_t> rows;
        for (size_t s = 0; s < 3; ++s) {
          const int32_t left = p.offsets[s + 1] - p.offsets[s] - lengths[s];
          counts.push_back(std::min(most, left));
          for (int32_t i = 0; i < counts.back(); ++i) rows.push_back(p.offsets[s] + lengths[s] + i);
        }
        const auto pick = [&](const Values& values) {
          Values picked;
          for (const int64_t row : rows)
            picked.insert(picked.end(), values.begin() + row * hidden, values.begin() + (row + 1) * hidden);
          return r.tensor(picked, {static_cast<int64_t>(rows.size()), hidden});
        };
        const Tensor offsets = r.int32s(offsets_of(counts));
        const Tensor cached = r.int32s(lengths);
        kv_cache_append(r.stream(), {pick(p.k), pick(p.v), offsets, cached, table, k_cache, v_cache});
        const Tensor out = r.empty({static_cast<int64_t>(rows.size()), hidden});
        paged_attention(r.stream(), {pick(p.q), offsets, cached, table, k_cache, v_cache, out, p.heads, p.scale});
        const Values values = r.read(out);
        for (size_t i = 0; i < rows.size(); ++i)
          std::copy_n(values.begin() + static_cast<int64_t>(i) * hidden, hidden, actual.begin() + rows[i] * hidden);
        more = false;
        for (size_t s = 0; s < 3; ++s) {
          lengths[s] += counts[s];
          more = more || lengths[s] < p.offsets[s + 1] - p.offsets[s];
        }
      }
      check_close(actual, expected.out, r.tolerance(1e-13, 2e-6), fmt::format("pieces of {}", piece));
    }
  });
}

TEST_CASE("on the CPU the cache refuses tokens that do not fit a slot and blocks that it does not have") {
  for_each_cpu_target([](Runner& r) {
    const Tensor k_cache = r.zeros({2, kKvBlockTokens, 4});
    const Tensor v_cache = r.zeros({2, kKvBlockTokens, 4});
    const Tensor kv = r.zeros({3, 4});
    const Tensor offsets = r.int32s({0, 3});
    const auto append = [&](int32_t cached, int32_t block) {
      kv_cache_append(r.stream(), {kv, kv, offsets, r.int32s({cached}), r.int32s({block}, {1, 1}), k_cache, v_cache});
    };
    CHECK_NOTHROW(append(29, 1));
    CHECK_THROWS_AS(append(30, 1), Error);
    CHECK_THROWS_AS(append(-1, 1), Error);
    CHECK_THROWS_AS(append(0, 2), Error);
    CHECK_THROWS_AS(append(0, -1), Error);
  });
}

TEST_CASE("on the CPU attention of a sequence of several spans of queries is that of the definition") {
  const Problem p = problem({2100}, 1, 4);
  const Values d_out = random_values(p.tokens * p.hidden(), 9);
  const Reference expected = reference(p);
  const Gradients gradients = reference_gradients(p, d_out);
  for_each_cpu_target([&](Runner& r) {
    const Tensors t = forward(r, p);
    // fp32: sums of up to 2,100 rounded terms.
    const Tolerance tolerance = r.tolerance(1e-12, 1e-5);
    check_close(r.read(t.out), expected.out, tolerance, "out");
    check_close(r.read(t.log_sum_exp), expected.log_sum_exp, tolerance, "log_sum_exp");
    const Gradients actual = backward(r, p, t, d_out);
    check_close(actual.q, gradients.q, tolerance, "d_q");
    check_close(actual.k, gradients.k, tolerance, "d_k");
    check_close(actual.v, gradients.v, tolerance, "d_v");
  });
}

TEST_CASE("on the CPU attention refuses offsets that do not cover the tokens") {
  for_each_cpu_target([](Runner& r) {
    const Tensor x = r.zeros({4, 6});
    for (const std::vector<int32_t>& bounds : {std::vector<int32_t>{0, 3}, {1, 4}, {0, 3, 2, 4}})
      CHECK_THROWS_AS(
          attention_forward(r.stream(), {x, x, x, r.int32s(bounds), r.zeros({4, 6}), r.zeros({4, 3}), 3, 1}), Error);
  });
}

TEST_CASE("attention refuses wrong shapes and dtypes and heads that do not divide") {
  for_each_target([](Runner& r) {
    const Tensor x = r.zeros({4, 6});
    const Tensor offsets = r.int32s({0, 4});
    const auto run = [&](const Tensor& k, const Tensor& bounds, int64_t heads) {
      attention_forward(r.stream(), {x, k, x, bounds, r.zeros({4, 6}), r.zero_statistics({4, heads}), heads, 1});
    };
    CHECK_NOTHROW(run(x, offsets, 3));
    CHECK_THROWS_AS(run(r.zeros({4, 5}), offsets, 3), Error);
    CHECK_THROWS_AS(run(r.zeros({3, 6}), offsets, 3), Error);
    CHECK_THROWS_AS(run(x, r.int64s({0, 4}), 3), Error);
    CHECK_THROWS_AS(run(x, offsets, 4), Error);
  });
}
