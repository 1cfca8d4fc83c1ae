// Cases of what the blocks of a model run on a micro-batch, forward and backward.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "app/bench_cases.h"
#include "base/rng.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"

namespace tercet {
namespace {

// A linear layer of a block: [T, K] -> [T, M] with bias.
struct Layer {
  const char* name;
  int64_t in, out;
  Activation activation = Activation::none;
};

std::vector<Layer> layers_of(const OptConfig& config) {
  const int64_t hidden = config.hidden_size;
  const bool relu = config.activation_function == Activation::relu;
  return {{"qkv", hidden, 3 * hidden},
          {"attention out", hidden, hidden},
          {relu ? "fc1 + relu" : "fc1 + gelu", hidden, config.ffn_dim, config.activation_function},
          {"fc2", config.ffn_dim, hidden}};
}

void add_linear_forward(BenchCaseList& list, const Layer& layer, int64_t tokens, const std::string& use) {
  const int64_t in = layer.in, out = layer.out;
  const Activation activation = layer.activation;
  const DType dtype = list.sizes().dtype;
  const bool gelu = activation == Activation::gelu;
  // x, weight, bias read; out written, and for gelu what it was taken of
  const int64_t elements = tokens * in + out * in + out + (gelu ? 2 : 1) * tokens * out;
  list.add({.op = linear_forward.name(),
            .part = layer.name + use,
            .shape = fmt::format("{} x {} -> {}", tokens, in, out),
            .bytes = element_bytes(dtype) * elements,
            .flops = 2 * tokens * in * out,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const LinearForwardArgs args{.x = t.random(dtype, {tokens, in}),
                                           .weight = t.random(dtype, {out, in}, kBenchWeightScale),
                                           .bias = t.random(dtype, {out}, kBenchWeightScale),
                                           .out = t.zeros(dtype, {tokens, out}),
                                           .pre_activation = gelu ? t.zeros(dtype, {tokens, out}) : Tensor(),
                                           .activation = activation};
              return {[args](Stream& s) { linear_forward(s, args); }};
            }});
}

// Both products and the bias's sums; the activation's derivative first.
void add_linear_backward(BenchCaseList& list, const Layer& layer, int64_t tokens) {
  const int64_t in = layer.in, out = layer.out;
  const Activation activation = layer.activation;
  const DType dtype = list.sizes().dtype;
  const bool active = activation != Activation::none;
  // d_out, x, weight read, d_x written; with an activation its output (or input) read and d_out written
  const int64_t elements = tokens * out + tokens * in + out * in + tokens * in + (active ? 2 * tokens * out : 0);
  // d_weight and d_bias read and written
  const int64_t sums = 2 * (out * in + out);
  list.add({.op = linear_backward.name(),
            .part = layer.name,
            .shape = fmt::format("{} x {} -> {}", tokens, in, out),
            .bytes = element_bytes(dtype) * elements + element_bytes(statistics_dtype(dtype)) * sums,
            .flops = 4 * tokens * in * out,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const DType statistics = statistics_dtype(dtype);
              const Tensor kept = active ? t.random(dtype, {tokens, out}) : Tensor();
              const LinearBackwardArgs args{.d_out = t.random(dtype, {tokens, out}),
                                            .x = t.random(dtype, {tokens, in}),
                                            .weight = t.random(dtype, {out, in}, kBenchWeightScale),
                                            .out = activation == Activation::relu ? kept : Tensor(),
                                            .pre_activation = activation == Activation::gelu ? kept : Tensor(),
                                            .d_x = t.zeros(dtype, {tokens, in}),
                                            .d_weight = t.zeros(statistics, {out, in}),
                                            .d_bias = t.zeros(statistics, {out}),
                                            .activation = activation};
              const std::function<void(Stream&)> run = [args](Stream& s) { linear_backward(s, args); };
              if (activation != Activation::gelu) return {run};
              const Tensor fresh = t.random(dtype, {tokens, out});
              return {run, [=](Stream& s) { cast(s, {.source = fresh, .target = args.d_out}); }};
            }});
}

void add_layer_norm_forward(BenchCaseList& list, bool residual) {
  const int64_t tokens = list.sizes().tokens;
  const int64_t hidden = list.sizes().config.hidden_size;
  const DType dtype = list.sizes().dtype;
  const DType statistics = statistics_dtype(dtype);
  // x (and residual) read, out (and sum) written; gamma, beta; mean, rstd
  const int64_t elements = (residual ? 4 : 2) * tokens * hidden + 2 * hidden;
  list.add({.op = layer_norm_forward.name(),
            .part = residual ? "with residual" : "",
            .shape = fmt::format("{} x {}", tokens, hidden),
            .bytes = element_bytes(dtype) * elements + element_bytes(statistics) * 2 * tokens,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const LayerNormForwardArgs args{.x = t.random(dtype, {tokens, hidden}),
                                              .residual = residual ? t.random(dtype, {tokens, hidden}) : Tensor(),
                                              .sum = residual ? t.zeros(dtype, {tokens, hidden}) : Tensor(),
                                              .gamma = t.random(dtype, {hidden}),
                                              .beta = t.random(dtype, {hidden}),
                                              .out = t.zeros(dtype, {tokens, hidden}),
                                              .mean = t.zeros(statistics, {tokens}),
                                              .rstd = t.zeros(statistics, {tokens})};
              return {[args](Stream& s) { layer_norm_forward(s, args); }};
            }});
}

void add_layer_norm_backward(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens;
  const int64_t hidden = list.sizes().config.hidden_size;
  const DType dtype = list.sizes().dtype;
  const DType statistics = statistics_dtype(dtype);
  // d_out, sum, d_residual read, d_sum written; gamma; mean and rstd read, d_gamma and d_beta read and written
  list.add({.op = layer_norm_backward.name(),
            .part = "with residual",
            .shape = fmt::format("{} x {}", tokens, hidden),
            .bytes = element_bytes(dtype) * (4 * tokens * hidden + hidden) +
                     element_bytes(statistics) * (2 * tokens + 4 * hidden),
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const LayerNormBackwardArgs args{.d_out = t.random(dtype, {tokens, hidden}),
                                               .sum = t.random(dtype, {tokens, hidden}),
                                               .mean = t.zeros(statistics, {tokens}),
                                               .rstd = t.random(statistics, {tokens}),
                                               .gamma = t.random(dtype, {hidden}),
                                               .d_residual = t.random(dtype, {tokens, hidden}),
                                               .d_sum = t.zeros(dtype, {tokens, hidden}),
                                               .d_gamma = t.zeros(statistics, {hidden}),
                                               .d_beta = t.zeros(statistics, {hidden})};
              return {[args](Stream& s) { layer_norm_backward(s, args); }};
            }});
}

// q, k and v of all tokens side by side, as the model has them.
struct AttentionTensors {
  Tensor q, k, v;

  AttentionTensors(const Tensor& qkv, int64_t hidden)
      : q(qkv.column_range(0, hidden)), k(qkv.column_range(hidden, hidden)), v(qkv.column_range(2 * hidden, hidden)) {}
};

// sum over sequences of 4 L^2 H / 2: two products, half of the square
int64_t causal_flops(const std::vector<int32_t>& offsets, int64_t hidden) {
  int64_t flops = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t length = offsets[b + 1] - offsets[b];
    flops += 2 * length * length * hidden;
  }
  return flops;
}

std::string attention_shape(const BenchSizes& sizes, size_t sequences) {
  return fmt::format("{} x {}, {} heads of {}", sequences, sizes.sequence, sizes.config.num_attention_heads,
                     sizes.config.head_size());
}

void add_attention_forward(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens;
  const int64_t hidden = list.sizes().config.hidden_size, heads = list.sizes().config.num_attention_heads;
  const DType dtype = list.sizes().dtype;
  const std::vector<int32_t> offsets = bench_offsets(tokens, list.sizes().sequence);
  // q, k, v read, out written; log_sum_exp written; offsets
  const int64_t statistics_bytes = element_bytes(statistics_dtype(dtype)) * tokens * heads;
  list.add({.op = attention_forward.name(),
            .shape = attention_shape(list.sizes(), offsets.size() - 1),
            .bytes = element_bytes(dtype) * 4 * tokens * hidden + statistics_bytes + 4 * std::ssize(offsets),
            .flops = causal_flops(offsets, hidden),
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const AttentionTensors qkv(t.random(dtype, {tokens, 3 * hidden}), hidden);
              const AttentionForwardArgs args{.q = qkv.q,
                                              .k = qkv.k,
                                              .v = qkv.v,
                                              .offsets = t.int32s(offsets),
                                              .out = t.zeros(dtype, {tokens, hidden}),
                                              .log_sum_exp = t.zeros(statistics_dtype(dtype), {tokens, heads}),
                                              .heads = heads,
                                              .scale = 1 / std::sqrt(static_cast<double>(hidden / heads))};
              return {[args](Stream& s) { attention_forward(s, args); }};
            }});
}

void add_attention_backward(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens;
  const int64_t hidden = list.sizes().config.hidden_size, heads = list.sizes().config.num_attention_heads;
  const DType dtype = list.sizes().dtype;
  const std::vector<int32_t> offsets = bench_offsets(tokens, list.sizes().sequence);
  // q, k, v, out, d_out read, d_q, d_k, d_v written; log_sum_exp read; offsets. Five products instead of two.
  const int64_t statistics_bytes = element_bytes(statistics_dtype(dtype)) * tokens * heads;
  list.add({.op = attention_backward.name(),
            .shape = attention_shape(list.sizes(), offsets.size() - 1),
            .bytes = element_bytes(dtype) * 8 * tokens * hidden + statistics_bytes + 4 * std::ssize(offsets),
            .flops = causal_flops(offsets, hidden) * 5 / 2,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const AttentionTensors qkv(t.random(dtype, {tokens, 3 * hidden}), hidden);
              const AttentionTensors gradient(t.zeros(dtype, {tokens, 3 * hidden}), hidden);
              AttentionBackwardArgs args{.q = qkv.q,
                                         .k = qkv.k,
                                         .v = qkv.v,
                                         .offsets = t.int32s(offsets),
                                         .out = t.zeros(dtype, {tokens, hidden}),
                                         .log_sum_exp = t.zeros(statistics_dtype(dtype), {tokens, heads}),
                                         .d_out = t.random(dtype, {tokens, hidden}),
                                         .d_q = gradient.q,
                                         .d_k = gradient.k,
                                         .d_v = gradient.v,
                                         .heads = heads,
                                         .scale = 1 / std::sqrt(static_cast<double>(hidden / heads))};
              // The forward pass gives what the backward pass is entitled to.
              const AttentionForwardArgs forward{args.q,   args.k,           args.v,     args.offsets,
                                                 args.out, args.log_sum_exp, args.heads, args.scale};
              return {[args](Stream& s) { attention_backward(s, args); },
                      [forward](Stream& s) { attention_forward(s, forward); }};
            }});
}

void add_embedding_forward(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, width = list.sizes().config.word_embed_proj_dim;
  const int64_t vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype;
  // a row read and written per token, and its id
  list.add({.op = embedding_forward.name(),
            .part = "tokens",
            .shape = fmt::format("{} of {} x {}", tokens, vocabulary, width),
            .bytes = element_bytes(dtype) * 2 * tokens * width + 4 * tokens,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const EmbeddingForwardArgs args{.ids = t.int32s(bench_ids(tokens, vocabulary, 1)),
                                              .table = t.random(dtype, {vocabulary, width}, kBenchWeightScale),
                                              .out = t.zeros(dtype, {tokens, width})};
              return {[args](Stream& s) { embedding_forward(s, args); }};
            }});
}

void add_position_embedding(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, sequence = list.sizes().sequence;
  const int64_t hidden = list.sizes().config.hidden_size;
  const int64_t rows = list.sizes().config.max_position_embeddings + OptConfig::kPositionOffset;
  const DType dtype = list.sizes().dtype;
  // out read and written; the rows of one sequence; ids
  list.add({.op = embedding_forward.name(),
            .part = "positions, added",
            .shape = fmt::format("{} of {} x {}", tokens, sequence, hidden),
            .bytes = element_bytes(dtype) * (2 * tokens + sequence) * hidden + 4 * tokens,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              std::vector<int32_t> positions(static_cast<size_t>(tokens));
              for (size_t i = 0; i < positions.size(); ++i)
                positions[i] = static_cast<int32_t>(i % static_cast<size_t>(sequence));
              const EmbeddingForwardArgs args{.ids = t.int32s(positions),
                                              .table = t.random(dtype, {rows, hidden}, kBenchWeightScale),
                                              .out = t.random(dtype, {tokens, hidden}),
                                              .row_offset = OptConfig::kPositionOffset,
                                              .accumulate = true};
              return {[args](Stream& s) { embedding_forward(s, args); }};
            }});
}

void add_embedding_backward(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, width = list.sizes().config.word_embed_proj_dim;
  const int64_t vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  const std::vector<int32_t> ids = bench_ids(tokens, vocabulary, 1);
  const std::set<int32_t> distinct(ids.begin(), ids.end());
  // d_out read; table rows in use read and written; ids
  list.add({.op = embedding_backward.name(),
            .part = "tokens",
            .shape = fmt::format("{} of {} x {}", tokens, vocabulary, width),
            .bytes = element_bytes(dtype) * tokens * width +
                     element_bytes(statistics) * 2 * std::ssize(distinct) * width + 4 * tokens,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const EmbeddingBackwardArgs args{.ids = t.int32s(ids),
                                               .d_out = t.random(dtype, {tokens, width}),
                                               .d_table = t.zeros(statistics, {vocabulary, width})};
              return {[args](Stream& s) { embedding_backward(s, args); }};
            }});
}

void add_dropout(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, hidden = list.sizes().config.hidden_size;
  const DType dtype = list.sizes().dtype;
  // x read and written; sample (8) and position (4) of each token
  list.add({.op = dropout.name(),
            .shape = fmt::format("{} x {}", tokens, hidden),
            .bytes = element_bytes(dtype) * 2 * tokens * hidden + 12 * tokens,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              std::vector<int32_t> positions(static_cast<size_t>(tokens));
              std::iota(positions.begin(), positions.end(), 0);
              const DropoutArgs args{.x = t.random(dtype, {tokens, hidden}),
                                     .samples = t.int64s(std::vector<int64_t>(positions.begin(), positions.end())),
                                     .positions = t.int32s(positions),
                                     .key = RandomStream(1, RandomPurpose::test).key(),
                                     .rate = 0.1};
              const Tensor fresh = t.random(dtype, {tokens, hidden});
              return {[args](Stream& s) { dropout(s, args); },
                      [=](Stream& s) { cast(s, {.source = fresh, .target = args.x}); }};
            }});
}

// The residual addition where no norm follows (post-norm models, the gradients of branches).
void add_addition(BenchCaseList& list) {
  const int64_t tokens = list.sizes().tokens, hidden = list.sizes().config.hidden_size;
  const DType dtype = list.sizes().dtype;
  list.add({.op = add_scaled.name(),
            .shape = fmt::format("{} x {}", tokens, hidden),
            .bytes = element_bytes(dtype) * 3 * tokens * hidden,  // source and target read, target written
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const AddScaledArgs args{.source = t.random(dtype, {tokens, hidden}),
                                       .target = t.random(dtype, {tokens, hidden}),
                                       .scale = 1e-3};
              return {[args](Stream& s) { add_scaled(s, args); }};
            }});
}

}  // namespace

void add_layer_cases(BenchCaseList& list) {
  const std::vector<Layer> layers = layers_of(list.sizes().config);
  for (const Layer& layer : layers) add_linear_forward(list, layer, list.sizes().tokens, "");
  for (const Layer& layer : layers) add_linear_backward(list, layer, list.sizes().tokens);
  for (const Layer& layer : layers) add_linear_forward(list, layer, list.sizes().slots, ", decoding");
  add_layer_norm_forward(list, false);
  add_layer_norm_forward(list, true);
  add_layer_norm_backward(list);
  add_attention_forward(list);
  add_attention_backward(list);
  add_embedding_forward(list);
  add_position_embedding(list);
  add_embedding_backward(list);
  add_dropout(list);
  add_addition(list);
}

}  // namespace tercet
