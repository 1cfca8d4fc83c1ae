// Cases of what lies between hidden states and token probabilities.
#include "app/bench_cases.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/token_log_prob.h"

namespace tercet {
namespace {

// Logits of `rows` hidden states over the tied token embedding.
void add_logits(BenchCaseList& list, int64_t rows, const std::string& use) {
  const int64_t width = list.sizes().config.word_embed_proj_dim, vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype;
  list.add({.op = linear_forward.name(),
            .part = "logits" + use,
            .shape = fmt::format("{} x {} -> {}", rows, width, vocabulary),
            // x and weight read, out written
            .bytes = element_bytes(dtype) * (rows * width + vocabulary * width + rows * vocabulary),
            .flops = 2 * rows * width * vocabulary,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const LinearForwardArgs args{.x = t.random(dtype, {rows, width}),
                                           .weight = t.random(dtype, {vocabulary, width}, kBenchWeightScale),
                                           .out = t.zeros(dtype, {rows, vocabulary})};
              return {[args](Stream& s) { linear_forward(s, args); }};
            }});
}

void add_logits_backward(BenchCaseList& list, int64_t rows) {
  const int64_t width = list.sizes().config.word_embed_proj_dim, vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  list.add({.op = linear_backward.name(),
            .part = "logits",
            .shape = fmt::format("{} x {} -> {}", rows, width, vocabulary),
            // d_out, x, weight read, d_x written; d_weight read and written
            .bytes = element_bytes(dtype) * (rows * vocabulary + 2 * rows * width + vocabulary * width) +
                     element_bytes(statistics) * 2 * vocabulary * width,
            .flops = 4 * rows * width * vocabulary,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const LinearBackwardArgs args{.d_out = t.random(dtype, {rows, vocabulary}, 1e-3),
                                            .x = t.random(dtype, {rows, width}),
                                            .weight = t.random(dtype, {vocabulary, width}, kBenchWeightScale),
                                            .d_x = t.zeros(dtype, {rows, width}),
                                            .d_weight = t.zeros(statistics, {vocabulary, width})};
              return {[args](Stream& s) { linear_backward(s, args); }};
            }});
}

void add_token_log_prob_forward(BenchCaseList& list, int64_t rows) {
  const int64_t vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  list.add({.op = token_log_prob_forward.name(),
            .shape = fmt::format("{} x {}", rows, vocabulary),
            // logits read once; log_prob, log_sum_exp, entropy, likeliest written; targets
            .bytes = element_bytes(dtype) * rows * vocabulary + element_bytes(statistics) * 4 * rows + 4 * rows,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const TokenLogProbForwardArgs args{.logits = t.random(dtype, {rows, vocabulary}),
                                                 .targets = t.int32s(bench_ids(rows, vocabulary, 1)),
                                                 .log_prob = t.zeros(statistics, {rows}),
                                                 .log_sum_exp = t.zeros(statistics, {rows}),
                                                 .entropy = t.zeros(statistics, {rows}),
                                                 .likeliest = t.zeros(statistics, {rows})};
              return {[args](Stream& s) { token_log_prob_forward(s, args); }};
            }});
}

void add_token_log_prob_backward(BenchCaseList& list, int64_t rows) {
  const int64_t vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  list.add({.op = token_log_prob_backward.name(),
            .shape = fmt::format("{} x {}", rows, vocabulary),
            // logits read and written; log_sum_exp, d_log_prob; targets
            .bytes = element_bytes(dtype) * 2 * rows * vocabulary + element_bytes(statistics) * 2 * rows + 4 * rows,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const Tensor fresh = t.random(dtype, {rows, vocabulary});
              const Tensor logits = t.random(dtype, {rows, vocabulary});
              const Tensor targets = t.int32s(bench_ids(rows, vocabulary, 1));
              const Tensor log_sum_exp = t.zeros(statistics, {rows});
              const Tensor log_prob = t.zeros(statistics, {rows});
              const TokenLogProbBackwardArgs args{.logits = logits,
                                                  .targets = targets,
                                                  .log_sum_exp = log_sum_exp,
                                                  .d_log_prob = t.random(statistics, {rows}, 1e-3)};
              return {[args](Stream& s) { token_log_prob_backward(s, args); },
                      [=](Stream& s) {
                        cast(s, {.source = fresh, .target = logits});
                        token_log_prob_forward(
                            s,
                            {.logits = logits, .targets = targets, .log_prob = log_prob, .log_sum_exp = log_sum_exp});
                      }};
            }});
}

// Every other token: those of the answers.
std::vector<int32_t> answer_rows(int64_t rows) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < rows; ++i) result.push_back(static_cast<int32_t>(2 * i));
  return result;
}

void add_gather_rows(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, rows = tokens / 2, width = list.sizes().config.word_embed_proj_dim;
  const DType dtype = list.sizes().dtype;
  list.add({.op = gather_rows.name(),
            .shape = fmt::format("{} of {} x {}", rows, tokens, width),
            .bytes = element_bytes(dtype) * 2 * rows * width + 4 * rows,  // a row read and written, its number
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const GatherRowsArgs args{.x = t.random(dtype, {tokens, width}),
                                        .rows = t.int32s(answer_rows(rows)),
                                        .out = t.zeros(dtype, {rows, width})};
              return {[args](Stream& s) { gather_rows(s, args); }};
            }});
}

void add_scatter_add_rows(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, rows = tokens / 2, width = list.sizes().config.word_embed_proj_dim;
  const DType dtype = list.sizes().dtype;
  list.add(
      {.op = scatter_add_rows.name(),
       .shape = fmt::format("{} of {} x {}", rows, tokens, width),
       .bytes = element_bytes(dtype) * 3 * rows * width + 4 * rows,  // x and out read, out written, the row's number
       .prepare = [=](BenchTensors& t) -> BenchCall {
         const ScatterAddRowsArgs args{.x = t.random(dtype, {rows, width}, 1e-3),
                                       .rows = t.int32s(answer_rows(rows)),
                                       .out = t.random(dtype, {tokens, width})};
         return {[args](Stream& s) { scatter_add_rows(s, args); }};
       }});
}

}  // namespace

void add_head_cases(BenchCaseList& list) {
  for (const int64_t rows : list.sizes().chunks) add_logits(list, rows, "");
  add_logits(list, list.sizes().slots, ", decoding");
  for (const int64_t rows : list.sizes().chunks) add_logits_backward(list, rows);
  for (const int64_t rows : list.sizes().chunks) add_token_log_prob_forward(list, rows);
  for (const int64_t rows : list.sizes().chunks) add_token_log_prob_backward(list, rows);
  add_gather_rows(list);
  add_scatter_add_rows(list);
}

}  // namespace tercet
