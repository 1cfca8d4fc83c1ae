// Times the ops of kernels/ on the CPU: fp32, processor time of one thread by default, so that a busy machine disturbs
// little. Usage: bench_kernels_cpu [threads] [part of a name]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/paged_attention.h"
#include "kernels/sample.h"
#include "kernels/simd.h"
#include "kernels/token_log_prob.h"

namespace tercet {
namespace {

struct Bench {
  std::unique_ptr<Device> device = open_device("cpu");
  std::unique_ptr<Stream> stream = device->create_stream();
  std::vector<Buffer> buffers;
  std::string filter;
  bool wall = false;

  double now() const {
    timespec t{};
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  // Small values of both signs.
  Tensor tensor(std::initializer_list<int64_t> shape) {
    Tensor t(nullptr, DType::f32, DeviceKind::cpu, shape);
    t.data = buffers.emplace_back(*device, static_cast<size_t>(t.elements()) * 4).data();
    for (int64_t i = 0; i < t.elements(); ++i) t.row<float>()[i] = static_cast<float>((i * 7919) % 1009) / 1009 - 0.5f;
    return t;
  }

  Tensor int32s(const std::vector<int32_t>& values) {
    Tensor t(nullptr, DType::i32, DeviceKind::cpu, {static_cast<int64_t>(values.size())});
    t.data = buffers.emplace_back(*device, values.size() * 4).data();
    std::copy(values.begin(), values.end(), t.row<int32_t>());
    return t;
  }

  // The fastest of many calls within a third of a second; `work` is in units of 1e9 (FLOP or bytes).
  void time(const std::string& name, double work, const char* unit, const std::function<void()>& body) {
    if (name.find(filter) == std::string::npos) return;
    body();
    double best = 1e30;
    const double start = now();
    for (int calls = 0; calls < 3 || now() - start < 0.3; ++calls) {
      const double before = now();
      body();
      best = std::min(best, now() - before);
    }
    fmt::print("{:44}{:12.3f} ms{:10.1f} {}\n", name, best * 1e3, work / best, unit);
    std::fflush(stdout);
  }
};

void bench_linear(Bench& b, int64_t tokens, int64_t depth, int64_t columns) {
  b.buffers.clear();
  const std::string shape = fmt::format("{} x {} x {}", tokens, depth, columns);
  const double work = 2e-9 * static_cast<double>(tokens * depth * columns);
  const Tensor x = b.tensor({tokens, depth});
  const Tensor weight = b.tensor({columns, depth});
  const Tensor out = b.tensor({tokens, columns});
  b.time("linear forward " + shape, work, "GFLOP/s",
         [&] { linear_forward(*b.stream, {.x = x, .weight = weight, .out = out}); });
  if (tokens <= 64) return;
  const Tensor d_x = b.tensor({tokens, depth});
  const Tensor d_weight = b.tensor({columns, depth});
  b.time("linear d_x " + shape, work, "GFLOP/s",
         [&] { linear_backward(*b.stream, {.d_out = out, .weight = weight, .d_x = d_x}); });
  b.time("linear d_weight " + shape, work, "GFLOP/s",
         [&] { linear_backward(*b.stream, {.d_out = out, .x = x, .d_weight = d_weight}); });
}

void bench_attention(Bench& b, int64_t sequences, int64_t length, int64_t heads, int64_t head_size) {
  b.buffers.clear();
  const int64_t tokens = sequences * length;
  const int64_t hidden = heads * head_size;
  std::vector<int32_t> bounds;
  for (int64_t s = 0; s <= sequences; ++s) bounds.push_back(static_cast<int32_t>(s * length));
  const Tensor offsets = b.int32s(bounds);
  const Tensor qkv = b.tensor({tokens, 3 * hidden});
  const Tensor d_qkv = b.tensor({tokens, 3 * hidden});
  const Tensor out = b.tensor({tokens, hidden});
  const Tensor d_out = b.tensor({tokens, hidden});
  const Tensor log_sum_exp = b.tensor({tokens, heads});
  const auto part = [hidden](const Tensor& t, int64_t i) { return t.column_range(i * hidden, hidden); };
  const std::string shape = fmt::format("{} x {}, {} x {}", sequences, length, heads, head_size);
  const double work = 2e-9 * static_cast<double>(tokens * (length + 1) * hidden);
  b.time("attention forward " + shape, work, "GFLOP/s", [&] {
    attention_forward(*b.stream, {part(qkv, 0), part(qkv, 1), part(qkv, 2), offsets, out, log_sum_exp, heads, 0.2});
  });
  b.time("attention backward " + shape, 2.5 * work, "GFLOP/s", [&] {
    attention_backward(*b.stream, {part(qkv, 0), part(qkv, 1), part(qkv, 2), offsets, out, log_sum_exp, d_out,
                                   part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), heads, 0.2});
  });
}

void bench_decode(Bench& b, int64_t slots, int64_t length, int64_t heads, int64_t head_size) {
  b.buffers.clear();
  const int64_t hidden = heads * head_size;
  const int64_t blocks = (length + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<int32_t> bounds;
  std::vector<int32_t> table;
  for (int64_t s = 0; s <= slots; ++s) bounds.push_back(static_cast<int32_t>(s));
  for (int64_t i = 0; i < slots * blocks; ++i) table.push_back(static_cast<int32_t>(i));
  const Tensor cache = b.tensor({slots * blocks, kKvBlockTokens, hidden});
  const PagedAttentionArgs args{
      b.tensor({slots, hidden}),
      b.int32s(bounds),
      b.int32s(std::vector<int32_t>(static_cast<size_t>(slots), static_cast<int32_t>(length - 1))),
      b.int32s(table).reshaped({slots, blocks}),
      cache,
      cache,
      b.tensor({slots, hidden}),
      heads,
      0.2};
  b.time(fmt::format("paged attention {} x {}, {} x {}", slots, length, heads, head_size),
         8e-9 * static_cast<double>(slots * length * hidden), "GB/s", [&] { paged_attention(*b.stream, args); });
}

void bench_rows(Bench& b, int64_t rows, int64_t vocabulary) {
  b.buffers.clear();
  const double work = 4e-9 * static_cast<double>(rows * vocabulary);
  const std::string shape = fmt::format("{} x {}", rows, vocabulary);
  const Tensor logits = b.tensor({rows, vocabulary});
  const Tensor column = b.tensor({rows});
  const Tensor entropy = b.tensor({rows});
  const Tensor log_sum_exp = b.tensor({rows});
  const Tensor ids = b.int32s(std::vector<int32_t>(static_cast<size_t>(rows), 1));
  b.time("token_log_prob forward " + shape, work, "GB/s", [&] {
    token_log_prob_forward(*b.stream, {logits, ids, column, log_sum_exp, entropy});
  });
  Tensor samples(b.buffers.emplace_back(*b.device, static_cast<size_t>(rows) * 8).data(), DType::i64, DeviceKind::cpu,
                 {rows});
  std::fill_n(samples.row<int64_t>(), rows, 3);
  b.time("sample " + shape, work, "GB/s", [&] {
    sample(*b.stream, {.logits = logits, .samples = samples, .positions = ids, .ids = ids, .log_prob = column});
  });
  b.time("token_log_prob backward " + shape, 2 * work, "GB/s", [&] {
    token_log_prob_backward(*b.stream, {logits, ids, log_sum_exp, Tensor(), column, Tensor()});
  });
}

void bench_flat(Bench& b) {
  b.buffers.clear();
  const int64_t n = int64_t{1} << 22;
  Tensor control(b.buffers.emplace_back(*b.device, 16).data(), DType::f64, DeviceKind::cpu, {2});
  control.row<double>()[0] = 1;
  control.row<double>()[1] = 0;
  const Tensor weights = b.tensor({n});
  const AdamWArgs args{.weights = weights,
                       .gradient = b.tensor({n}),
                       .m = b.tensor({n}),
                       .v = b.tensor({n}),
                       .control = control,
                       .lr = 1e-9};
  std::fill_n(args.v.row<float>(), n, 1.0f);
  b.time("adamw 4M", 28e-9 * static_cast<double>(n), "GB/s", [&] { adamw(*b.stream, args); });
  b.time("sum_of_squares 4M", 4e-9 * static_cast<double>(n), "GB/s", [&] {
    sum_of_squares(*b.stream, {weights, control.row_range(1, 1)});
  });
  const int64_t rows = 4096;
  const Tensor x = b.tensor({rows, 768});
  const Tensor out = b.tensor({rows, 768});
  const Tensor gamma = b.tensor({768});
  const Tensor d_gamma = b.tensor({768});
  const Tensor mean = b.tensor({rows});
  const Tensor rstd = b.tensor({rows});
  const double bytes = 4e-9 * static_cast<double>(rows * 768);
  b.time("layer_norm forward 4096 x 768", 4 * bytes, "GB/s", [&] {
    layer_norm_forward(*b.stream, {x, out, x, gamma, gamma, out, mean, rstd});
  });
  b.time("layer_norm backward 4096 x 768", 4 * bytes, "GB/s", [&] {
    layer_norm_backward(*b.stream, {out, x, mean, rstd, gamma, out, out, d_gamma, d_gamma});
  });
}

void run(int argc, char** argv) {
  Bench b;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  b.filter = argc > 2 ? argv[2] : "";
  b.wall = threads > 1;
  set_threads(threads);
  fmt::print("{}, {} thread(s), {} time\n", simd_ops().isa, threads, b.wall ? "wall" : "processor");
  for (const int64_t tokens : {1, 4, 16, 64})
    for (const auto& [depth, columns] : {std::pair<int64_t, int64_t>{128, 384}, {512, 128}, {768, 3072}})
      bench_linear(b, tokens, depth, columns);
  for (const int64_t tokens : {200, 1000, 4000})
    for (const auto& [depth, columns] :
         {std::pair<int64_t, int64_t>{128, 128}, {128, 384}, {128, 512}, {512, 128}, {256, 1024}})
      bench_linear(b, tokens, depth, columns);
  bench_linear(b, 1024, 768, 2304);
  bench_linear(b, 1024, 768, 3072);
  bench_linear(b, 1024, 3072, 768);
  bench_linear(b, 256, 768, 50272);
  bench_attention(b, 64, 48, 4, 32);
  bench_attention(b, 8, 256, 12, 64);
  bench_attention(b, 1, 2048, 12, 64);
  bench_decode(b, 64, 50, 4, 32);
  bench_decode(b, 16, 500, 12, 64);
  bench_rows(b, 1024, 1024);
  bench_rows(b, 64, 50272);
  bench_flat(b);
}

}  // namespace
}  // namespace tercet

int main(int argc, char** argv) { tercet::run(argc, argv); }
