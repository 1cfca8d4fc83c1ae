// Attention on GPU devices: tensor core tiles and their FMA stand-in, every size around a tile, and decoding from the
// cache, against the CPU in fp64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "device/gpu_stream.h"
#include "harness.h"
#include "kernels/attention.h"
#include "kernels/paged_attention.h"

using namespace tercet;
using namespace tercet::test;

namespace {

// What lies before the columns of q, k and v in a row, and after them.
struct Margin {
  int64_t before = 0, after = 0;
};

struct Problem {
  std::vector<int32_t> lengths;
  int64_t heads, head_size;
  double spread = 1;  // standard deviation of q, k, v and d_out

  int64_t hidden() const { return heads * head_size; }
  int64_t tokens() const { return offsets_of(lengths).back(); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_size)); }
  Values qkv() const { return random_values(tokens() * 3 * hidden(), 1, spread); }
  Values d_out() const { return random_values(tokens() * hidden(), 2, spread); }
};

// q, k and v are columns of one tensor, as the model has them.
struct Fused {
  Tensor all, q, k, v;

  Fused(const Tensor& tensor, int64_t hidden, const Margin& margin)
      : all(tensor),
        q(tensor.column_range(margin.before, hidden)),
        k(tensor.column_range(margin.before + hidden, hidden)),
        v(tensor.column_range(margin.before + 2 * hidden, hidden)) {}
};

Fused fused(Runner& r, const Problem& p, const Values& qkv, const Margin& margin = {}) {
  const int64_t columns = 3 * p.hidden(), width = margin.before + columns + margin.after;
  Values padded(static_cast<size_t>(p.tokens() * width), std::numeric_limits<double>::quiet_NaN());
  for (int64_t t = 0; t < p.tokens(); ++t)
    std::copy_n(qkv.begin() + t * columns, columns, padded.begin() + t * width + margin.before);
  return {r.tensor(padded, {p.tokens(), width}), p.hidden(), margin};
}

struct Results {
  Values out, log_sum_exp, d_q, d_k, d_v;
};

Results run(Runner& r, const Problem& p, const Values& qkv, const Margin& margin, double scale) {
  const Fused x = fused(r, p, qkv, margin);
  const Tensor offsets = r.int32s(offsets_of(p.lengths));
  const Tensor out = r.empty({p.tokens(), p.hidden()});
  const Tensor log_sum_exp = r.empty_statistics({p.tokens(), p.heads});
  attention_forward(r.stream(), {x.q, x.k, x.v, offsets, out, log_sum_exp, p.heads, scale});
  const Fused d(r.empty({p.tokens(), x.all.columns()}), p.hidden(), margin);
  const Tensor d_out = r.tensor(p.d_out(), {p.tokens(), p.hidden()});
  attention_backward(r.stream(), {x.q, x.k, x.v, offsets, out, log_sum_exp, d_out, d.q, d.k, d.v, p.heads, scale});
  return {r.read(out), r.read(log_sum_exp), r.read(d.q), r.read(d.k), r.read(d.v)};
}

Results run(Runner& r, const Problem& p, const Margin& margin = {}) { return run(r, p, p.qkv(), margin, p.scale()); }

// What the CPU computes in fp64 from inputs of the dtype. The scaled q is an input too, rounded as OPT does it.
Results oracle_results(const Problem& p, DType dtype) {
  Runner r = Runner::oracle(dtype);
  Values qkv = r.rounded(p.qkv());
  for (int64_t t = 0; t < p.tokens(); ++t)
    for (int64_t i = 0; i < p.hidden(); ++i) qkv[static_cast<size_t>(t * 3 * p.hidden() + i)] *= p.scale();
  Results results = run(r, p, qkv, {}, 1);
  for (double& x : results.d_q) x *= p.scale();
  return results;
}

void check_same_bits(const Results& actual, const Results& expected, const std::string& what) {
  check_equal(actual.out, expected.out, what + ": out");
  check_equal(actual.log_sum_exp, expected.log_sum_exp, what + ": log_sum_exp");
  check_equal(actual.d_q, expected.d_q, what + ": d_q");
  check_equal(actual.d_k, expected.d_k, what + ": d_k");
  check_equal(actual.d_v, expected.d_v, what + ": d_v");
}

// P and the scaled q are rounded to 11 or 8 bits before a product, dS too in the backward pass, and the result once
// more.
Tolerance forward_tolerance(DType dtype) {
  return Tolerance::relative_norm(dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 1e-3 : 6e-3);
}

Tolerance backward_tolerance(DType dtype) {
  return Tolerance::relative_norm(dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1e-2);
}

void check_results(const Results& actual, const Results& expected, DType dtype, const std::string& what) {
  check_close(actual.out, expected.out, forward_tolerance(dtype), what + ": out");
  // fp32 in every dtype: nothing but the scaled q is rounded before.
  check_close(actual.log_sum_exp, expected.log_sum_exp, Tolerance::relative_norm(1e-6), what + ": log_sum_exp");
  check_close(actual.d_q, expected.d_q, backward_tolerance(dtype), what + ": d_q");
  check_close(actual.d_k, expected.d_k, backward_tolerance(dtype), what + ": d_k");
  check_close(actual.d_v, expected.d_v, backward_tolerance(dtype), what + ": d_v");
}

// Calls body(device name, dtype) for the GPU devices that are present.
void for_each_gpu(const std::function<void(const std::string&, DType)>& body) {
  for (const std::string& device : present_gpu_devices())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::string target = device + " " + dtype_name(dtype);
      INFO(target);
      body(device, dtype);
    }
}

void compare_with_oracle(const std::string& device, DType dtype, const Problem& p, const Margin& margin = {}) {
  Runner gpu(device, dtype);
  check_results(run(gpu, p, margin), oracle_results(p, dtype), dtype,
                fmt::format("head size {}, spread {}", p.head_size, p.spread));
}

// An environment variable that has its old value again at the end.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    had_ = std::getenv(name) != nullptr;
    setenv(name, value, 1);
  }
  ~Setting() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

}  // namespace

TEST_CASE(
    "attention's kernels agree with fp64 at lengths around a tile, for every head size that has tiles and others") {
  for_each_gpu([](const std::string& device, DType dtype) {
    for (const int64_t head_size : {64, 80, 128, 6, 96})
      for (const double spread : {1.0, 3.0})
        compare_with_oracle(device, dtype, {{0, 1, 63, 65, 0, 129}, head_size == 6 ? 3 : 1, head_size, spread});
  });
}

TEST_CASE(
    "attention's kernels agree with fp64 for one head of several, sequences that end with a tile, and large heads") {
  for_each_gpu([](const std::string& device, DType dtype) {
    compare_with_oracle(device, dtype, {{64, 128}, 2, 64});
    compare_with_oracle(device, dtype, {{32, 0, 0}, 2, 80});
    compare_with_oracle(device, dtype, {{40}, 1, 256});
    compare_with_oracle(device, dtype, {{}, 1, 64});
  });
}

TEST_CASE("attention's kernels take rows of any pitch") {
  for_each_gpu([](const std::string& device, DType dtype) {
    // Aligned to 16 bytes, and not, by the pitch or by the address.
    for (const Margin margin : {Margin{8, 8}, Margin{0, 1}, Margin{2, 6}})
      compare_with_oracle(device, dtype, {{3, 70}, 2, 64}, margin);
  });
}

TEST_CASE("attention's kernels read nothing of neighbouring sequences") {
  for_each_gpu([](const std::string& device, DType dtype) {
    for (const int64_t head_size : {64, 10}) {
      const Problem p{{5, 70, 5}, 1, head_size};
      const Problem alone{{70}, 1, head_size};
      const int64_t row = 3 * p.hidden();
      Values qkv(static_cast<size_t>(p.tokens() * row), std::numeric_limits<double>::quiet_NaN());
      std::copy_n(p.qkv().begin() + 5 * row, 70 * row, qkv.begin() + 5 * row);
      Runner r(device, dtype);
      const Fused x = fused(r, p, qkv);
      const Tensor out = r.empty({p.tokens(), p.hidden()});
      const Tensor log_sum_exp = r.empty_statistics({p.tokens(), p.heads});
      const Tensor offsets = r.int32s(offsets_of(p.lengths));
      attention_forward(r.stream(), {x.q, x.k, x.v, offsets, out, log_sum_exp, p.heads, p.scale()});
      const Fused d(r.empty({p.tokens(), row}), p.hidden(), {});
      const Tensor d_out = out;
      attention_backward(r.stream(),
                         {x.q, x.k, x.v, offsets, out, log_sum_exp, d_out, d.q, d.k, d.v, p.heads, p.scale()});

      Runner other(device, dtype);
      const Fused y = fused(other, alone, Values(qkv.begin() + 5 * row, qkv.begin() + 75 * row));
      const Tensor bounds = other.int32s({0, 70});
      const Tensor out_alone = other.empty({70, p.hidden()});
      const Tensor log_sum_exp_alone = other.empty_statistics({70, p.heads});
      attention_forward(other.stream(), {y.q, y.k, y.v, bounds, out_alone, log_sum_exp_alone, p.heads, p.scale()});
      const Fused e(other.empty({70, row}), p.hidden(), {});
      attention_backward(other.stream(), {y.q, y.k, y.v, bounds, out_alone, log_sum_exp_alone, out_alone, e.q, e.k, e.v,
                                          p.heads, p.scale()});
      check_equal(r.read(out.row_range(5, 70)), other.read(out_alone), "out");
      check_equal(r.read(d.all.row_range(5, 70)), other.read(e.all), "gradients");
    }
  });
}

TEST_CASE("attention's kernels give the same bits in every run and order of threads") {
  for_each_gpu([](const std::string& device, DType dtype) {
    for (const int64_t head_size : {64, 80, 12}) {
      const Problem p{{70, 0, 131}, 1, head_size};
      const auto with = [&](const char* order, const char* copies) {
        const Setting order_setting("TERCET_EMU_ORDER", order), copy_setting("TERCET_EMU_COPY", copies);
        Runner r(device, dtype);
        return run(r, p);
      };
      const Results first = with("fifo", "late");
      check_same_bits(with("fifo", "late"), first, "again");
      check_same_bits(with("lifo", "late"), first, "the last thread first");
      check_same_bits(with("random", "early"), first, "in random order");
    }
  });
}

namespace {

// A cache of several slots, filled and read in pieces.
class Decoder {
 public:
  // Block tables are `blocks_per_slot` wide and hold the blocks of a shuffled cache.
  Decoder(Runner& r, const Problem& p, const Values& qkv, int32_t blocks_per_slot)
      : r_(r),
        p_(p),
        qkv_(qkv),
        slots_(static_cast<int64_t>(p.lengths.size())),
        cached_(p.lengths.size(), 0),
        k_cache_(r.empty({slots_ * blocks_per_slot, kKvBlockTokens, p.hidden()})),
        v_cache_(r.empty({slots_ * blocks_per_slot, kKvBlockTokens, p.hidden()})),
        out_(static_cast<size_t>(p.tokens() * p.hidden()), std::numeric_limits<double>::quiet_NaN()) {
    std::vector<int32_t> table(p.lengths.size() * static_cast<size_t>(blocks_per_slot));
    const auto count = static_cast<int32_t>(table.size());
    for (int32_t i = 0; i < count; ++i) table[static_cast<size_t>(i)] = count - 1 - i;
    table_ = r.int32s(table, {slots_, blocks_per_slot});
  }

  // Attends to up to pieces[s] more tokens of slot s. `idle` rows at the end belong to no slot.
  void step(const std::vector<int32_t>& pieces, int64_t idle = 0) {
    const std::vector<int32_t> bounds = offsets_of(p_.lengths);
    std::vector<int32_t> counts;
    std::vector<int64_t> rows;
    for (size_t s = 0; s < pieces.size(); ++s) {
      counts.push_back(std::min(pieces[s], p_.lengths[s] - cached_[s]));
      for (int32_t i = 0; i < counts[s]; ++i) rows.push_back(bounds[s] + cached_[s] + i);
    }
    const int64_t hidden = p_.hidden(), total = static_cast<int64_t>(rows.size()) + idle;
    Values picked(static_cast<size_t>(total * 3 * hidden), 7.0);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(qkv_.begin() + rows[i] * 3 * hidden, 3 * hidden,
                  picked.begin() + static_cast<int64_t>(i) * 3 * hidden);
    const Fused x(r_.tensor(picked, {total, 3 * hidden}), hidden, {});
    const Tensor offsets = r_.int32s(offsets_of(counts)), lengths = r_.int32s(cached_);
    const Tensor out = r_.empty({total, hidden});
    kv_cache_append(r_.stream(), {x.k, x.v, offsets, lengths, table_, k_cache_, v_cache_});
    paged_attention(r_.stream(), {x.q, offsets, lengths, table_, k_cache_, v_cache_, out, p_.heads, p_.scale()});
    const Values values = r_.read(out);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(values.begin() + static_cast<int64_t>(i) * hidden, hidden, out_.begin() + rows[i] * hidden);
    for (auto i = static_cast<size_t>((total - idle) * hidden); i < values.size(); ++i) REQUIRE(std::isnan(values[i]));
    for (size_t s = 0; s < pieces.size(); ++s) cached_[s] += counts[s];
    check_stored();
  }

  bool done() const { return cached_ == p_.lengths; }
  const Values& out() const { return out_; }

 private:
  // The caches hold the keys and values of all tokens so far, and nothing else.
  void check_stored() {
    const int64_t tokens = std::accumulate(cached_.begin(), cached_.end(), int64_t{0});
    for (const Tensor& cache : {k_cache_, v_cache_}) {
      const Values values = r_.read(cache);
      REQUIRE(std::count_if(values.begin(), values.end(), [](double x) { return !std::isnan(x); }) ==
              tokens * p_.hidden());
    }
  }

  Runner& r_;
  const Problem& p_;
  const Values& qkv_;
  int64_t slots_;
  std::vector<int32_t> cached_;
  Tensor k_cache_, v_cache_, table_;
  Values out_;
};

}  // namespace

TEST_CASE("decoding from the cache equals attention over the whole sequence, for prompts, single tokens and both") {
  for_each_gpu([](const std::string& device, DType dtype) {
    for (const auto& [heads, head_size] : {std::pair{2, 64}, std::pair{1, 80}, std::pair{1, 128}, std::pair{3, 6}}) {
      const Problem p{{70, 1, 69, 33}, heads, head_size};
      Runner r(device, dtype);
      const Values qkv = p.qkv();
      Decoder decoder(r, p, qkv, 3);
      decoder.step({66, 0, 33, 1}, 2);  // prompts and a single token
      decoder.step({2, 1, 33, 29});     // prompts that begin in the cache
      for (int i = 0; i < 3; ++i) decoder.step({1, 1, 1, 1}, i);
      REQUIRE(decoder.done());
      check_close(decoder.out(), oracle_results(p, dtype).out, forward_tolerance(dtype),
                  fmt::format("head size {}", head_size));
    }
  });
}

TEST_CASE("decoding few slots splits their cache and merges the parts, empty ones too") {
  for_each_gpu([](const std::string& device, DType dtype) {
    for (const int64_t head_size : {64, 80, 10}) {
      // 16 blocks per slot are split in four; the first slot fills five, the second one.
      const Problem p{{150, 2}, 1, head_size};
      Runner r(device, dtype);
      const Values qkv = p.qkv();
      Decoder decoder(r, p, qkv, 16);
      decoder.step({147, 0});
      for (const int64_t idle : {0, 0, 1}) decoder.step({1, 1}, idle);
      REQUIRE(decoder.done());
      check_close(decoder.out(), oracle_results(p, dtype).out, forward_tolerance(dtype),
                  fmt::format("head size {}", head_size));
    }
  });
}

TEST_CASE("several new tokens of one slot among idle ones are attended to") {
  for_each_gpu([](const std::string& device, DType dtype) {
    const Problem p{{40, 0, 0, 0, 0}, 2, 64};
    Runner r(device, dtype);
    const Values qkv = p.qkv();
    Decoder decoder(r, p, qkv, 8);
    decoder.step({36, 0, 0, 0, 0});
    decoder.step({4, 0, 0, 0, 0});
    check_close(decoder.out(), oracle_results(p, dtype).out, forward_tolerance(dtype), "out");
  });
}

TEST_CASE("a captured step of decoding serves later lengths") {
  for_each_gpu([](const std::string& device, DType dtype) {
    const Problem p{{37, 40}, 1, 64};
    const int64_t hidden = p.hidden();
    const Values qkv = p.qkv(), expected = oracle_results(p, dtype).out;
    Runner r(device, dtype);
    auto& stream = static_cast<GpuStream&>(r.stream());
    const Tensor k_cache = r.empty({16, kKvBlockTokens, hidden}), v_cache = r.empty({16, kKvBlockTokens, hidden});
    const Tensor table = r.int32s({3, 9, 0, 5, 1, 7, 8, 11, 15, 2, 4, 12, 6, 10, 13, 14}, {2, 8});
    const Tensor lengths = r.int32s({0, 0}), offsets = r.int32s({0, 1, 2});
    const Fused x(r.empty({2, 3 * hidden}), hidden, {});
    const Tensor out = r.empty({2, hidden});
    const std::unique_ptr<Graph> graph = capture(stream, [&] {
      kv_cache_append(stream, {x.k, x.v, offsets, lengths, table, k_cache, v_cache});
      paged_attention(stream, {x.q, offsets, lengths, table, k_cache, v_cache, out, p.heads, p.scale()});
    });
    for (int32_t i = 0; i < 37; ++i) {
      Values rows(qkv.begin() + i * 3 * hidden, qkv.begin() + (i + 1) * 3 * hidden);
      rows.insert(rows.end(), qkv.begin() + (37 + i) * 3 * hidden, qkv.begin() + (38 + i) * 3 * hidden);
      const Tensor source = r.tensor(rows, {2, 3 * hidden});
      const std::vector<int32_t> now{i, i};
      stream.copy_on_device(x.all.data, source.data, static_cast<size_t>(6 * hidden) * dtype_size(dtype));
      stream.copy_to_device(lengths.data, now.data(), sizeof(int32_t) * 2);
      stream.launch(*graph);
      const Values actual = r.read(out);
      if (i < 36) continue;
      Values wanted(expected.begin() + i * hidden, expected.begin() + (i + 1) * hidden);
      wanted.insert(wanted.end(), expected.begin() + (37 + i) * hidden, expected.begin() + (38 + i) * hidden);
      check_close(actual, wanted, forward_tolerance(dtype), fmt::format("position {}", i));
    }
  });
}

TEST_CASE("attention on a GPU refuses heads beyond its shared memory, fp64 and statistics of another dtype") {
  for (const std::string& device : present_gpu_devices()) {
    Runner r(device, DType::bf16);
    const Tensor offsets = r.int32s({0, 2});
    const auto forward = [&](const Tensor& x, const Tensor& log_sum_exp) {
      attention_forward(r.stream(), {x, x, x, offsets, x, log_sum_exp, 1, 1});
    };
    const Tensor x = r.zeros({2, 8});
    CHECK_NOTHROW(forward(x, r.zero_statistics({2, 1})));
    CHECK_NOTHROW(forward(x, {}));
    CHECK_THROWS_AS(forward(x, r.zeros({2, 1})), Error);
    CHECK_THROWS_AS(forward(r.zeros({2, 258}), {}), Error);
    Tensor wide = r.zeros({2, 32});
    wide = Tensor(wide.data, DType::f64, wide.device, {2, 8});
    CHECK_THROWS_AS(forward(wide, {}), Error);
    r.stream().synchronize();
  }
}
