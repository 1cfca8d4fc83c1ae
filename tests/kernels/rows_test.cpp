// Embedding, dropout, copies and sums over rows.
#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "harness.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

using namespace tercet;
using namespace tercet::test;

TEST_CASE("embedding copies rows by id and offset, or adds them") {
  const std::vector<int32_t> ids = {3, 0, 3, 1};
  for_each_target([&](Runner& r) {
    const Values table = r.rounded(random_values(6 * 5, 1));
    const Values old = r.rounded(random_values(4 * 5, 2));
    for (const bool accumulate : {false, true}) {
      Values expected = accumulate ? old : Values(old.size());
      for (size_t t = 0; t < 4; ++t)
        for (size_t h = 0; h < 5; ++h) expected[t * 5 + h] += table[(static_cast<size_t>(ids[t]) + 2) * 5 + h];
      const Tensor out = r.tensor(old, {4, 5}, 7);
      embedding_forward(r.stream(), {r.int32s(ids), r.tensor(table, {6, 5}), out, 2, accumulate});
      check_close(r.read(out), expected, r.tolerance(0, 1e-7), "out");
    }
  });
}

TEST_CASE("embedding's gradient adds the rows of repeated ids, in a table of elements or of fp32") {
  struct Case {
    int64_t tokens, ids, hidden;  // ids below `ids`
  };
  // One byte of table rows and more, tokens around a warp and a block, an id that fills the batch, odd widths.
  for (const Case& c :
       {Case{0, 2, 70}, Case{5, 2, 70}, Case{63, 300, 8}, Case{65, 1, 9}, Case{1025, 257, 12}, Case{3000, 70000, 8}}) {
    const int64_t tokens = c.tokens;
    const int64_t ids = c.ids;
    const int64_t hidden = c.hidden;
    const Values d_out = random_values(tokens * hidden, 1);
    const Values old = random_values((ids + 2) * hidden, 2);
    const std::vector<int32_t> tokens_ids = random_ids(tokens, ids, 3);
    for_each_target([&](Runner& r) {
      for (const bool wide : {true, false}) {
        const Tensor d_table = wide ? r.statistics(old, {ids + 2, hidden}) : r.tensor(old, {ids + 2, hidden});
        Values expected = r.read(d_table);
        const Values added = r.rounded(d_out);
        for (size_t t = 0; t < tokens_ids.size(); ++t)
          for (int64_t h = 0; h < hidden; ++h)
            expected[static_cast<size_t>((tokens_ids[t] + 2) * hidden + h)] +=
                added[t * static_cast<size_t>(hidden) + static_cast<size_t>(h)];
        embedding_backward(r.stream(), {r.int32s(tokens_ids), r.tensor(d_out, {tokens, hidden}), d_table, 2});
        // fp32: sums of up to 65 standard normals.
        check_close(r.read(d_table), expected, r.tolerance(1e-14, 5e-6), fmt::format("{} tokens", tokens));
      }
    });
  }
}

TEST_CASE("on the CPU embedding names the first id outside its table") {
  for_each_cpu_target([](Runner& r) {
    const Tensor table = r.zeros({6, 2});
    const Tensor out = r.zeros({3, 2});
    CHECK_THROWS_WITH_AS(embedding_forward(r.stream(), {r.int32s({0, 4, -3}), table, out, 2}),
                         doctest::Contains("ids[1] = 4"), Error);
    CHECK_THROWS_WITH_AS(embedding_forward(r.stream(), {r.int32s({0, 3, -3}), table, out, 2}),
                         doctest::Contains("ids[2] = -3"), Error);
    CHECK_THROWS_AS(embedding_backward(r.stream(), {r.int32s({0, 0, 6}), out, table}), Error);
  });
}

TEST_CASE("embedding refuses wrong shapes") {
  for_each_target([](Runner& r) {
    const Tensor table = r.zeros({6, 2});
    CHECK_THROWS_AS(embedding_forward(r.stream(), {r.int32s({0, 0}), table, r.zeros({3, 2})}), Error);
    CHECK_THROWS_AS(embedding_forward(r.stream(), {r.int32s({0, 0, 0}), table, r.zeros({3, 3})}), Error);
    CHECK_THROWS_AS(embedding_backward(r.stream(), {r.int32s({0, 0}), r.zeros({3, 2}), table}), Error);
  });
}

TEST_CASE("cast, add_scaled and affine work on views of any pitch") {
  for_each_target([](Runner& r) {
    const Values x = r.rounded(random_values(4 * 9, 1));
    const Values y = r.rounded(random_values(4 * 9, 2));
    for (const int64_t pitch : {9, 12, 16}) {
      const Tensor source = r.tensor(x, {4, 9}, pitch);
      const Tensor target = r.tensor(y, {4, 9}, pitch + 2);
      const Tensor copy = r.empty({4, 9}, pitch);
      cast(r.stream(), {source, copy});
      check_equal(r.read(copy), x, "copy");
      add_scaled(r.stream(), {source, target, -3});
      Values expected = y;
      for (size_t i = 0; i < expected.size(); ++i) expected[i] -= 3 * x[i];
      check_close(r.read(target), expected, r.tolerance(1e-15, 3e-7), "sum");
      affine(r.stream(), {copy, 2, 1});
      expected = x;
      for (double& value : expected) value = 2 * value + 1;
      check_close(r.read(copy), expected, r.tolerance(1e-15, 3e-7), "affine");
    }
  });
}

TEST_CASE("cast rounds to nearest even into 16 bits and back") {
  for (const std::string& device : present_devices()) {
    Runner r(device, DType::f32);
    Runner half(device, DType::bf16);
    // 1 + 2^-8 lies half way between two bf16 numbers, and 1 is the even one; so does 1 + 3 2^-8 with 1 + 2^-6.
    const Tensor source = r.tensor({1 + 0x1p-8, 1 + 3 * 0x1p-8, -2.5, 0}, {4});
    const Tensor target = half.empty({4});
    cast(r.stream(), {source, target});
    r.stream().synchronize();  // `half` reads on a stream of its own
    check_equal(half.read(target), {1, 1 + 0x1p-6, -2.5, 0}, "bf16");
    const Tensor back = r.empty({4});
    cast(r.stream(), {target, back});
    check_equal(r.read(back), {1, 1 + 0x1p-6, -2.5, 0}, "fp32");
  }
}

TEST_CASE("gather_rows and scatter_add_rows select rows") {
  for_each_target([](Runner& r) {
    const Values x = r.rounded(random_values(5 * 3, 1));
    const Tensor rows = r.int32s({4, 0, 2});
    const Tensor picked = r.empty({3, 3});
    gather_rows(r.stream(), {r.tensor(x, {5, 3}), rows, picked});
    Values expected;
    for (const int row : {4, 0, 2}) expected.insert(expected.end(), x.begin() + row * 3, x.begin() + row * 3 + 3);
    check_equal(r.read(picked), expected, "gathered");
    const Tensor target = r.tensor(x, {5, 3});
    scatter_add_rows(r.stream(), {picked, rows, target});
    expected = x;
    for (const size_t row : {4u, 0u, 2u})
      for (size_t h = 0; h < 3; ++h) expected[row * 3 + h] *= 2;
    check_equal(r.read(target), expected, "scattered");
    if (r.device().kind() == DeviceKind::cpu)
      CHECK_THROWS_AS(gather_rows(r.stream(), {target, r.int32s({0, 5, 1}), picked}), Error);
    CHECK_THROWS_AS(scatter_add_rows(r.stream(), {picked, r.int32s({0, 1}), target}), Error);
  });
}

TEST_CASE("dropout keeps the elements whose random number is at least the rate, forward and backward") {
  constexpr int64_t kRows = 300;
  constexpr int64_t kHidden = 70;
  const RandomStream stream(11, RandomPurpose::dropout, 3);
  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < kRows; ++t) {
    samples.push_back((int64_t{1} << 40) + t / 9);
    positions.push_back(static_cast<int32_t>(t % 9));
  }
  const Values x = random_values(kRows * kHidden, 1);
  for (const double rate : {0.0, 0.1, 0.5, 0.999}) {
    int64_t kept = 0;
    Values factor(x.size());
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t h = 0; h < kHidden; ++h) {
        const bool keep =
            stream.uniform(static_cast<uint64_t>(samples[static_cast<size_t>(t)]),
                           static_cast<uint32_t>(positions[static_cast<size_t>(t)]), static_cast<uint32_t>(h)) >= rate;
        factor[static_cast<size_t>(t * kHidden + h)] = keep ? 1 / (1 - rate) : 0;
        kept += keep ? 1 : 0;
      }
    // Four standard deviations of a binomial.
    const double n = kRows * kHidden;
    CHECK(std::abs(static_cast<double>(kept) / n - (1 - rate)) <= 4 * std::sqrt(rate * (1 - rate) / n));
    for_each_target([&](Runner& r) {
      Values expected = r.rounded(x);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= factor[i];
      const Tensor values = r.tensor(x, {kRows, kHidden}, kHidden + 2);
      const DropoutArgs args{values, r.int64s(samples), r.int32s(positions), stream.key(), rate};
      dropout(r.stream(), args);
      check_close(r.read(values), expected, r.tolerance(1e-15, 2e-7), fmt::format("rate {}", rate));
      const Tensor ones = r.tensor(Values(x.size(), 1.0), {kRows, kHidden});
      dropout(r.stream(), {ones, args.samples, args.positions, args.key, rate});
      const Values mask = r.read(ones);
      for (size_t i = 0; i < mask.size(); ++i) CHECK((mask[i] == 0) == (factor[i] == 0));
    });
  }
  for_each_target([&](Runner& r) {
    const Tensor values = r.zeros({2, 2});
    CHECK_THROWS_AS(dropout(r.stream(), {values, r.int64s({0, 1}), r.int32s({0, 1}), 0, 1.0}), Error);
    CHECK_THROWS_AS(dropout(r.stream(), {values, r.int64s({0}), r.int32s({0, 1}), 0, 0.1}), Error);
  });
}
