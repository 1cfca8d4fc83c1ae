// A GPU's ops by each of their ways: in packs of 16 bytes and element by element, for each width that has a kernel of
// its own. That no kernel is forgotten is what coverage.sh checks.
#include <doctest/doctest.h>

#include "base/error.h"
#include "catalogue.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/op_list.h"
#include "kernels/paged_attention.h"

using namespace tercet;
using namespace tercet::test;

namespace {

constexpr DType kGpuTypes[] = {DType::f32, DType::bf16, DType::f16};

// Compares what `body` computes on every GPU and in every dtype with fp64 on the same inputs. `prepare` sees the GPU's
// runner first.
void compare(
    const std::string& what, const std::function<Outputs(Runner&)>& body,
    const std::function<void(Runner&)>& prepare = [](Runner&) {}) {
  for (const std::string& device : present_gpu_devices())
    for (const DType dtype : kGpuTypes) {
      Runner runner(device, dtype), oracle = Runner::oracle(dtype);
      prepare(runner);
      const Outputs actual = body(runner), expected = body(oracle);
      for (size_t i = 0; i < expected.size(); ++i)
        check_close(actual[i], expected[i], Tolerance::relative_norm(norm_tolerance(dtype)),
                    fmt::format("{} of {} on {}, output {}", what, dtype_name(dtype), device, i));
    }
}

Outputs layer_norm_both_ways(Runner& r, int64_t rows, int64_t hidden) {
  const Tensor x = r.tensor(random_values(rows * hidden, 1), {rows, hidden});
  const Tensor out = r.empty({rows, hidden});
  const Tensor gamma = r.tensor(random_values(hidden, 2), {hidden}),
               beta = r.tensor(random_values(hidden, 3), {hidden});
  const Tensor mean = r.empty_statistics({rows}), rstd = r.empty_statistics({rows});
  layer_norm_forward(r.stream(), {.x = x, .gamma = gamma, .beta = beta, .out = out, .mean = mean, .rstd = rstd});
  LayerNormBackwardArgs args{.d_out = r.tensor(random_values(rows * hidden, 4), {rows, hidden}),
                             .sum = x,
                             .mean = mean,
                             .rstd = rstd,
                             .gamma = gamma,
                             .d_residual = r.tensor(random_values(rows * hidden, 5), {rows, hidden}),
                             .d_sum = r.empty({rows, hidden}),
                             .d_gamma = r.statistics(random_values(hidden, 6), {hidden}),
                             .d_beta = r.statistics(random_values(hidden, 7), {hidden})};
  layer_norm_backward(r.stream(), args);
  return {r.read(out), r.read(args.d_sum), r.read(args.d_gamma), r.read(args.d_beta)};
}

Outputs linear_gradients(Runner& r, int64_t rows, int64_t columns, Activation activation) {
  constexpr int64_t kInner = 16;
  LinearBackwardArgs args{.d_out = r.tensor(random_values(rows * columns, 1), {rows, columns}),
                          .x = r.tensor(random_values(rows * kInner, 2), {rows, kInner}),
                          .weight = r.tensor(random_values(columns * kInner, 3, 0.1), {columns, kInner}),
                          .out = r.tensor(random_values(rows * columns, 4), {rows, columns}),
                          .pre_activation = r.tensor(random_values(rows * columns, 5), {rows, columns}),
                          .d_bias = r.statistics(random_values(columns, 6), {columns}),
                          .activation = activation};
  linear_backward(r.stream(), args);
  return {r.read(args.d_out), r.read(args.d_bias)};
}

Outputs accumulated_linear(Runner& r, int64_t rows, int64_t columns) {
  constexpr int64_t kInner = 16;
  const Tensor out = r.tensor(random_values(rows * columns, 1), {rows, columns});
  linear_forward(r.stream(), {.x = r.tensor(random_values(rows * kInner, 2), {rows, kInner}),
                              .weight = r.tensor(random_values(columns * kInner, 3), {columns, kInner}),
                              .bias = r.tensor(random_values(columns, 4), {columns}),
                              .out = out,
                              .accumulate = true});
  return {r.read(out)};
}

Outputs rows_by_index(Runner& r, int64_t columns) {
  constexpr int64_t kRows = 9, kTable = 14;
  const Tensor table = r.tensor(random_values(kTable * columns, 1), {kTable, columns});
  const Tensor ids = r.int32s({3, 0, 7, 9, 1, 2, 8, 4, 6});
  const Tensor gathered = r.empty({kRows, columns});
  gather_rows(r.stream(), {table, ids, gathered});
  const Tensor scattered = r.tensor(random_values(kTable * columns, 2), {kTable, columns});
  scatter_add_rows(r.stream(), {gathered, ids, scattered});
  const Tensor embedded = r.empty({kRows, columns});
  embedding_forward(r.stream(), {ids, table, embedded, 2, false});
  const Outputs written = {r.read(gathered), r.read(scattered), r.read(embedded)};
  embedding_forward(r.stream(), {ids, table, embedded, 1, true});
  return {written[0], written[1], written[2], r.read(embedded)};
}

// `tokens` new tokens in each of three slots that hold 33, 0 and 70 tokens; one head.
Outputs paged_head(Runner& r, int64_t head_size, int32_t tokens) {
  constexpr int64_t kSlots = 3, kBlocks = 3;
  const int64_t rows = kSlots * tokens;
  const int64_t cached = kSlots * kBlocks * kKvBlockTokens * head_size;
  const Tensor out = r.empty({rows, head_size});
  paged_attention(r.stream(), {r.tensor(random_values(rows * head_size, 1), {rows, head_size}),
                               r.int32s({0, tokens, 2 * tokens, 3 * tokens}), r.int32s({33, 0, 70}),
                               r.int32s({8, 1, 5, 0, 7, 2, 3, 6, 4}, {kSlots, kBlocks}),
                               r.tensor(random_values(cached, 2), {kSlots * kBlocks, kKvBlockTokens, head_size}),
                               r.tensor(random_values(cached, 3), {kSlots * kBlocks, kKvBlockTokens, head_size}), out,
                               1, 1 / std::sqrt(static_cast<double>(head_size))});
  return {r.read(out)};
}

}  // namespace

TEST_CASE("every op computes on tensors that no pack of 16 bytes can read") {
  for (const CatalogueEntry& entry : catalogue())
    for (const std::string& device : present_gpu_devices())
      for (const DType dtype : kGpuTypes) {
        if (!find_op(entry.op).supports(DeviceKind::cuda, dtype)) continue;
        Runner runner(device, dtype), oracle = Runner::oracle(dtype);
        runner.misalign();
        const Outputs actual = entry.run(runner, 65), expected = entry.run(oracle, 65);
        for (size_t i = 0; i < expected.size(); ++i)
          check_close(actual[i], expected[i], Tolerance::relative_norm(norm_tolerance(dtype)),
                      fmt::format("output {} of {} {} on {}", i, entry.op, dtype_name(dtype), device));
      }
}

TEST_CASE("cast converts between all dtypes of a GPU, in packs and element by element") {
  const Values values = random_values(5 * 24, 1);
  for (const std::string& device : present_gpu_devices())
    for (const DType from : kGpuTypes)
      for (const DType to : kGpuTypes)
        for (const int64_t pitch : {24, 25}) {
          Runner source(device, from), target(device, to), oracle = Runner::oracle(to);
          const Tensor out = target.empty({5, 24}, pitch);
          cast(target.stream(), {source.tensor(values, {5, 24}), out});
          check_equal(target.read(out), oracle.rounded(source.rounded(values)),
                      fmt::format("{} to {} with a pitch of {}", dtype_name(from), dtype_name(to), pitch));
        }
}

TEST_CASE("layer norm computes at the widths of each of its kernels") {
  for (const int64_t hidden : {256, 768, 2048, 2563, 4096, 8192, 12287, 12288})
    compare(fmt::format("layer norm over {} columns", hidden),
            [hidden](Runner& r) { return layer_norm_both_ways(r, 3, hidden); });
}

TEST_CASE("a linear layer's element-wise passes compute in packs and element by element") {
  for (const int64_t columns : {64, 65}) {
    compare(fmt::format("accumulated linear of {} columns", columns),
            [columns](Runner& r) { return accumulated_linear(r, 7, columns); });
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu})
      compare(fmt::format("gradients of {} columns", columns),
              [&](Runner& r) { return linear_gradients(r, 67, columns, activation); });
  }
}

TEST_CASE("rows are chosen by their index in packs and element by element") {
  for (const int64_t columns : {64, 65})
    compare(fmt::format("rows of {}", columns), [columns](Runner& r) { return rows_by_index(r, columns); });
}

TEST_CASE("attention over the cache computes at every size of a head, in packs and element by element") {
  for (const int64_t head_size : {24, 64, 128, 256, 27, 61, 125, 251})
    for (const int32_t tokens : {1, 5})
      compare(fmt::format("{} tokens by a head of {}", tokens, head_size),
              [&](Runner& r) { return paged_head(r, head_size, tokens); });
}
