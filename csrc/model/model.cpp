#include "model/model.h"

#include <cmath>

#include "base/rng.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/paged_attention.h"
#include "model/activations.h"

namespace tercet {
namespace {

Tensor first_rows(const Tensor& tensor, int64_t rows) {
  return tensor.defined() ? tensor.row_range(0, rows) : Tensor();
}

LayerActivations first_rows(const LayerActivations& layer, int64_t tokens) {
  const auto cut = [&](const Tensor& tensor) { return first_rows(tensor, tokens); };
  return {cut(layer.input),
          cut(layer.norm1),
          cut(layer.mean1),
          cut(layer.rstd1),
          cut(layer.qkv),
          cut(layer.attended),
          cut(layer.log_sum_exp),
          cut(layer.middle),
          cut(layer.norm2),
          cut(layer.mean2),
          cut(layer.rstd2),
          cut(layer.hidden),
          cut(layer.before_activation)};
}

// Where dropout is applied in a block.
enum class Branch : uint64_t { attention = 0, feed_forward = 1 };

}  // namespace

struct OptModel::Step {
  Stream& stream;
  const DeviceBatch& batch;
  Activations::Data& data;
  const DropoutOptions& dropout;
  const KvCacheView* cache = nullptr;
  int64_t tokens = 0;

  Step(Stream& work, const DeviceBatch& ragged, Activations& activations, const DropoutOptions& options)
      : stream(work), batch(ragged), data(activations.data()), dropout(options), tokens(ragged.token_count()) {}

  LayerActivations layer(int index) const { return first_rows(data.layers[static_cast<size_t>(index)], tokens); }
  Tensor rows(const Tensor& tensor) const { return first_rows(tensor, tokens); }
  Tensor wide(int64_t columns) const { return data.d_wide.row_range(0, tokens * columns).reshaped({tokens, columns}); }

  // Drops out x in place; the mask is the same in forward and backward.
  void drop(const Tensor& x, int layer, Branch branch) const {
    if (dropout.rate == 0) return;
    const auto layers = static_cast<uint64_t>(data.layers.size());
    const uint64_t site = (dropout.step * layers + static_cast<uint64_t>(layer)) * 2 + static_cast<uint64_t>(branch);
    tercet::dropout(stream, {.x = x,
                             .samples = batch.samples,
                             .positions = batch.positions,
                             .key = RandomStream(dropout.seed, RandomPurpose::dropout, site).key(),
                             .rate = dropout.rate});
  }

  // The gradient of a branch's output before dropout: d_out itself, or a dropped-out copy in `copy`.
  Tensor dropped(const Tensor& d_out, const Tensor& copy, int layer, Branch branch) const {
    if (dropout.rate == 0) return d_out;
    cast(stream, {.source = d_out, .target = copy});
    drop(copy, layer, branch);
    return copy;
  }
};

OptModel::OptModel(const OptConfig& config, Head head, UnitSet& units) : config_(config), head_(head), units_(units) {
  const std::string decoder = "model.decoder.";
  embedding_unit_ = units.index_of("embedding");
  const UnitSpec& embedding = units.spec(embedding_unit_);
  embed_tokens_ = find_tensor(embedding, decoder + "embed_tokens.weight");
  embed_positions_ = find_tensor(embedding, decoder + "embed_positions.weight");
  project_in_ = find_tensor(embedding, decoder + "project_in.weight");
  if (config.has_projections() || config.has_final_layer_norm()) {
    for (int unit = 0; unit < units.count(); ++unit)
      if (units.spec(unit).name == "final") final_unit_ = unit;
  }
  if (final_unit_ >= 0) {
    const UnitSpec& final_unit = units.spec(final_unit_);
    project_out_ = find_tensor(final_unit, decoder + "project_out.weight");
    final_norm_ = find_tensor(final_unit, decoder + "final_layer_norm.weight");
    final_norm_bias_ = find_tensor(final_unit, decoder + "final_layer_norm.bias");
  }
  if (head == Head::scalar) {
    score_unit_ = units.index_of("score");
    score_weight_ = find_tensor(units.spec(score_unit_), "score.weight");
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string name = fmt::format("layers.{}", i);
    const int index = units.index_of(name);
    const UnitSpec& unit = units.spec(index);
    const auto tensor = [&](const char* suffix) { return find_tensor(unit, decoder + name + "." + suffix); };
    const auto joined = [&](const char* suffix) { return find_joined(unit, decoder + name + "." + suffix, 3); };
    layers_.push_back({.unit = index,
                       .qkv = joined("self_attn.q_proj.weight"),
                       .qkv_bias = joined("self_attn.q_proj.bias"),
                       .out = tensor("self_attn.out_proj.weight"),
                       .out_bias = tensor("self_attn.out_proj.bias"),
                       .fc1 = tensor("fc1.weight"),
                       .fc1_bias = tensor("fc1.bias"),
                       .fc2 = tensor("fc2.weight"),
                       .fc2_bias = tensor("fc2.bias"),
                       .norm1 = tensor("self_attn_layer_norm.weight"),
                       .norm1_bias = tensor("self_attn_layer_norm.bias"),
                       .norm2 = tensor("final_layer_norm.weight"),
                       .norm2_bias = tensor("final_layer_norm.bias")});
  }
}

void OptModel::forward(Stream& stream, const DeviceBatch& batch, Activations& activations,
                       const DropoutOptions& dropout_options, const KvCacheView* cache) {
  Step step(stream, batch, activations, dropout_options);
  step.cache = cache;
  step.data.tokens = step.tokens;
  step.data.backward_possible = step.data.options.training && cache == nullptr;
  embed(step);
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    if (config_.do_layer_norm_before)
      block_pre_norm(step, layer, false);
    else
      block_post_norm(step, layer);
  }
  finish(step);
}

void OptModel::backward(Stream& stream, const DeviceBatch& batch, Activations& activations,
                        const DropoutOptions& dropout_options) {
  Step step(stream, batch, activations, dropout_options);
  TERCET_REQUIRE(step.data.backward_possible && step.data.tokens == step.tokens,
                 "backward without a forward of the same batch on these activations");
  const bool again = step.data.options.recompute == Recompute::block;
  finish_backward(step);
  for (int layer = static_cast<int>(layers_.size()) - 1; layer >= 0; --layer) {
    if (config_.do_layer_norm_before) {
      if (again) block_pre_norm(step, layer, true);
      block_backward_pre_norm(step, layer);
    } else {
      if (again) block_post_norm(step, layer);
      block_backward_post_norm(step, layer);
    }
  }
  embed_backward(step);
  step.data.backward_possible = false;
}

void OptModel::embed(Step& step) const {
  const UnitLease lease(units_, embedding_unit_);
  const Tensor input = step.layer(0).input;
  if (project_in_.defined()) {
    const Tensor embedded = step.rows(step.data.embedded);
    embedding_forward(step.stream, {.ids = step.batch.tokens, .table = lease.weight(embed_tokens_), .out = embedded});
    linear_forward(step.stream, {.x = embedded, .weight = lease.weight(project_in_), .out = input});
  } else {
    embedding_forward(step.stream, {.ids = step.batch.tokens, .table = lease.weight(embed_tokens_), .out = input});
  }
  embedding_forward(step.stream, {.ids = step.batch.positions,
                                  .table = lease.weight(embed_positions_),
                                  .out = input,
                                  .row_offset = OptConfig::kPositionOffset,
                                  .accumulate = true});
}

// stream = out_proj(attention(input)), dropped out.
void OptModel::attend(Step& step, int layer, const UnitLease& lease, const Tensor& input) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const LayerActivations kept = step.layer(layer);
  const int64_t hidden = config_.hidden_size;
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_size()));
  linear_forward(step.stream,
                 {.x = input, .weight = lease.weight(refs.qkv), .bias = lease.weight(refs.qkv_bias), .out = kept.qkv});
  const Tensor q = kept.qkv.column_range(0, hidden);
  const Tensor k = kept.qkv.column_range(hidden, hidden);
  const Tensor v = kept.qkv.column_range(2 * hidden, hidden);
  if (step.cache == nullptr) {
    attention_forward(step.stream, {.q = q,
                                    .k = k,
                                    .v = v,
                                    .offsets = step.batch.offsets,
                                    .out = kept.attended,
                                    .log_sum_exp = kept.log_sum_exp,
                                    .heads = config_.num_attention_heads,
                                    .scale = scale});
  } else {
    const Tensor& k_cache = step.cache->k.at(static_cast<size_t>(layer));
    const Tensor& v_cache = step.cache->v.at(static_cast<size_t>(layer));
    kv_cache_append(step.stream, {.k = k,
                                  .v = v,
                                  .offsets = step.batch.offsets,
                                  .lengths = step.cache->lengths,
                                  .block_table = step.cache->block_table,
                                  .k_cache = k_cache,
                                  .v_cache = v_cache});
    paged_attention(step.stream, {.q = q,
                                  .offsets = step.batch.offsets,
                                  .lengths = step.cache->lengths,
                                  .block_table = step.cache->block_table,
                                  .k_cache = k_cache,
                                  .v_cache = v_cache,
                                  .out = kept.attended,
                                  .heads = config_.num_attention_heads,
                                  .scale = scale});
  }
  const Tensor projected = step.rows(step.data.stream);
  linear_forward(
      step.stream,
      {.x = kept.attended, .weight = lease.weight(refs.out), .bias = lease.weight(refs.out_bias), .out = projected});
  step.drop(projected, layer, Branch::attention);
}

void OptModel::feed_forward_in(Step& step, int layer, const UnitLease& lease, const Tensor& input) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const LayerActivations kept = step.layer(layer);
  linear_forward(step.stream, {.x = input,
                               .weight = lease.weight(refs.fc1),
                               .bias = lease.weight(refs.fc1_bias),
                               .out = kept.hidden,
                               .pre_activation = kept.before_activation,
                               .activation = config_.activation_function});
}

// stream = fc2(hidden), dropped out.
void OptModel::feed_forward_out(Step& step, int layer, const UnitLease& lease) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const Tensor projected = step.rows(step.data.stream);
  linear_forward(step.stream, {.x = step.layer(layer).hidden,
                               .weight = lease.weight(refs.fc2),
                               .bias = lease.weight(refs.fc2_bias),
                               .out = projected});
  step.drop(projected, layer, Branch::feed_forward);
}

// The residual addition that ends a block is fused with the first norm of the next one. `again` recomputes from the
// stored input what backward needs, which leaves out fc2.
void OptModel::block_pre_norm(Step& step, int layer, bool again) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const UnitLease lease(units_, refs.unit);
  const LayerActivations kept = step.layer(layer);
  const Tensor projected = step.rows(step.data.stream);
  const bool add = layer > 0 && !again;
  layer_norm_forward(step.stream, {.x = add ? projected : kept.input,
                                   .residual = add ? step.layer(layer - 1).middle : Tensor(),
                                   .sum = add ? kept.input : Tensor(),
                                   .gamma = lease.weight(refs.norm1),
                                   .beta = lease.weight(refs.norm1_bias),
                                   .out = kept.norm1,
                                   .mean = kept.mean1,
                                   .rstd = kept.rstd1,
                                   .epsilon = OptConfig::kLayerNormEpsilon});
  attend(step, layer, lease, kept.norm1);
  layer_norm_forward(step.stream, {.x = projected,
                                   .residual = kept.input,
                                   .sum = kept.middle,
                                   .gamma = lease.weight(refs.norm2),
                                   .beta = lease.weight(refs.norm2_bias),
                                   .out = kept.norm2,
                                   .mean = kept.mean2,
                                   .rstd = kept.rstd2,
                                   .epsilon = OptConfig::kLayerNormEpsilon});
  feed_forward_in(step, layer, lease, kept.norm2);
  if (!again) feed_forward_out(step, layer, lease);
}

// Here `middle` is the sum before the attention norm, `norm1` its output, `norm2` the sum before the last norm.
void OptModel::block_post_norm(Step& step, int layer) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const UnitLease lease(units_, refs.unit);
  const LayerActivations kept = step.layer(layer);
  const Tensor projected = step.rows(step.data.stream);
  const bool last = layer + 1 == static_cast<int>(layers_.size());
  attend(step, layer, lease, kept.input);
  layer_norm_forward(step.stream, {.x = projected,
                                   .residual = kept.input,
                                   .sum = kept.middle,
                                   .gamma = lease.weight(refs.norm1),
                                   .beta = lease.weight(refs.norm1_bias),
                                   .out = kept.norm1,
                                   .mean = kept.mean1,
                                   .rstd = kept.rstd1,
                                   .epsilon = OptConfig::kLayerNormEpsilon});
  feed_forward_in(step, layer, lease, kept.norm1);
  feed_forward_out(step, layer, lease);
  layer_norm_forward(step.stream, {.x = projected,
                                   .residual = kept.norm1,
                                   .sum = kept.norm2,
                                   .gamma = lease.weight(refs.norm2),
                                   .beta = lease.weight(refs.norm2_bias),
                                   .out = last ? step.rows(step.data.top) : step.layer(layer + 1).input,
                                   .mean = kept.mean2,
                                   .rstd = kept.rstd2,
                                   .epsilon = OptConfig::kLayerNormEpsilon});
}

void OptModel::finish(Step& step) const {
  const Tensor top = step.rows(step.data.top);
  const LayerActivations last = step.layer(static_cast<int>(layers_.size()) - 1);
  std::optional<UnitLease> lease;
  if (final_unit_ >= 0) lease.emplace(units_, final_unit_);
  if (config_.has_final_layer_norm()) {
    layer_norm_forward(step.stream, {.x = step.rows(step.data.stream),
                                     .residual = last.middle,
                                     .sum = step.rows(step.data.final_sum),
                                     .gamma = lease ? lease->weight(final_norm_) : Tensor(),
                                     .beta = lease ? lease->weight(final_norm_bias_) : Tensor(),
                                     .out = top,
                                     .mean = step.rows(step.data.final_mean),
                                     .rstd = step.rows(step.data.final_rstd),
                                     .epsilon = OptConfig::kLayerNormEpsilon});
  } else if (config_.do_layer_norm_before) {
    cast(step.stream, {.source = step.rows(step.data.stream), .target = top});
    add_scaled(step.stream, {.source = last.middle, .target = top});
  }
  if (project_out_.defined())
    linear_forward(step.stream, {.x = top, .weight = lease->weight(project_out_), .out = step.rows(step.data.output)});
}

// From d_output to d_stream, the gradient of the last block's output.
void OptModel::finish_backward(Step& step) const {
  std::optional<UnitLease> lease;
  if (final_unit_ >= 0) lease.emplace(units_, final_unit_);
  const Tensor d_stream = step.rows(step.data.d_stream);
  Tensor d_top = step.rows(step.data.d_output);
  if (project_out_.defined()) {
    linear_backward(step.stream, {.d_out = d_top,
                                  .x = step.rows(step.data.top),
                                  .weight = lease->weight(project_out_),
                                  .d_x = d_stream,
                                  .d_weight = lease->gradient(project_out_)});
    d_top = d_stream;
  }
  if (config_.has_final_layer_norm()) {
    layer_norm_backward(step.stream, {.d_out = d_top,
                                      .sum = step.rows(step.data.final_sum),
                                      .mean = step.rows(step.data.final_mean),
                                      .rstd = step.rows(step.data.final_rstd),
                                      .gamma = lease ? lease->weight(final_norm_) : Tensor(),
                                      .d_sum = d_stream,
                                      .d_gamma = lease ? lease->gradient(final_norm_) : Tensor(),
                                      .d_beta = lease ? lease->gradient(final_norm_bias_) : Tensor()});
  } else if (!project_out_.defined()) {
    cast(step.stream, {.source = d_top, .target = d_stream});
  }
}

void OptModel::attend_backward(Step& step, int layer, const UnitLease& lease, const Tensor& input, const Tensor& d_out,
                               const Tensor& d_input, bool accumulate) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const LayerActivations kept = step.layer(layer);
  const int64_t hidden = config_.hidden_size;
  const Tensor d_projected = step.dropped(d_out, step.rows(step.data.d_norm), layer, Branch::attention);
  const Tensor d_attended = step.rows(step.data.d_branch);
  linear_backward(step.stream, {.d_out = d_projected,
                                .x = kept.attended,
                                .weight = lease.weight(refs.out),
                                .d_x = d_attended,
                                .d_weight = lease.gradient(refs.out),
                                .d_bias = lease.gradient(refs.out_bias)});
  const Tensor d_qkv = step.wide(3 * hidden);
  attention_backward(step.stream, {.q = kept.qkv.column_range(0, hidden),
                                   .k = kept.qkv.column_range(hidden, hidden),
                                   .v = kept.qkv.column_range(2 * hidden, hidden),
                                   .offsets = step.batch.offsets,
                                   .out = kept.attended,
                                   .log_sum_exp = kept.log_sum_exp,
                                   .d_out = d_attended,
                                   .d_q = d_qkv.column_range(0, hidden),
                                   .d_k = d_qkv.column_range(hidden, hidden),
                                   .d_v = d_qkv.column_range(2 * hidden, hidden),
                                   .heads = config_.num_attention_heads,
                                   .scale = 1 / std::sqrt(static_cast<double>(config_.head_size()))});
  linear_backward(step.stream, {.d_out = d_qkv,
                                .x = input,
                                .weight = lease.weight(refs.qkv),
                                .d_x = d_input,
                                .d_weight = lease.gradient(refs.qkv),
                                .d_bias = lease.gradient(refs.qkv_bias),
                                .accumulate_d_x = accumulate});
}

void OptModel::feed_forward_backward(Step& step, int layer, const UnitLease& lease, const Tensor& input,
                                     const Tensor& d_out, const Tensor& d_input, bool accumulate) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const LayerActivations kept = step.layer(layer);
  const Tensor d_projected = step.dropped(d_out, step.rows(step.data.d_branch), layer, Branch::feed_forward);
  const Tensor d_hidden = step.wide(config_.ffn_dim);
  linear_backward(step.stream, {.d_out = d_projected,
                                .x = kept.hidden,
                                .weight = lease.weight(refs.fc2),
                                .d_x = d_hidden,
                                .d_weight = lease.gradient(refs.fc2),
                                .d_bias = lease.gradient(refs.fc2_bias)});
  const bool relu = config_.activation_function == Activation::relu;
  linear_backward(step.stream, {.d_out = d_hidden,
                                .x = input,
                                .weight = lease.weight(refs.fc1),
                                .out = relu ? kept.hidden : Tensor(),
                                .pre_activation = relu ? Tensor() : kept.before_activation,
                                .d_x = d_input,
                                .d_weight = lease.gradient(refs.fc1),
                                .d_bias = lease.gradient(refs.fc1_bias),
                                .activation = config_.activation_function,
                                .accumulate_d_x = accumulate});
}

void OptModel::block_backward_pre_norm(Step& step, int layer) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const UnitLease lease(units_, refs.unit);
  const LayerActivations kept = step.layer(layer);
  const Tensor d_stream = step.rows(step.data.d_stream);
  const Tensor d_norm = step.rows(step.data.d_norm);
  feed_forward_backward(step, layer, lease, kept.norm2, d_stream, d_norm, false);
  layer_norm_backward(step.stream, {.d_out = d_norm,
                                    .sum = kept.middle,
                                    .mean = kept.mean2,
                                    .rstd = kept.rstd2,
                                    .gamma = lease.weight(refs.norm2),
                                    .d_residual = d_stream,
                                    .d_sum = d_stream,
                                    .d_gamma = lease.gradient(refs.norm2),
                                    .d_beta = lease.gradient(refs.norm2_bias)});
  attend_backward(step, layer, lease, kept.norm1, d_stream, d_norm, false);
  layer_norm_backward(step.stream, {.d_out = d_norm,
                                    .sum = kept.input,
                                    .mean = kept.mean1,
                                    .rstd = kept.rstd1,
                                    .gamma = lease.weight(refs.norm1),
                                    .d_residual = d_stream,
                                    .d_sum = d_stream,
                                    .d_gamma = lease.gradient(refs.norm1),
                                    .d_beta = lease.gradient(refs.norm1_bias)});
}

void OptModel::block_backward_post_norm(Step& step, int layer) const {
  const LayerRefs& refs = layers_[static_cast<size_t>(layer)];
  const UnitLease lease(units_, refs.unit);
  const LayerActivations kept = step.layer(layer);
  const Tensor d_stream = step.rows(step.data.d_stream);
  layer_norm_backward(step.stream, {.d_out = d_stream,
                                    .sum = kept.norm2,
                                    .mean = kept.mean2,
                                    .rstd = kept.rstd2,
                                    .gamma = lease.weight(refs.norm2),
                                    .d_sum = d_stream,
                                    .d_gamma = lease.gradient(refs.norm2),
                                    .d_beta = lease.gradient(refs.norm2_bias)});
  feed_forward_backward(step, layer, lease, kept.norm1, d_stream, d_stream, true);
  layer_norm_backward(step.stream, {.d_out = d_stream,
                                    .sum = kept.middle,
                                    .mean = kept.mean1,
                                    .rstd = kept.rstd1,
                                    .gamma = lease.weight(refs.norm1),
                                    .d_sum = d_stream,
                                    .d_gamma = lease.gradient(refs.norm1),
                                    .d_beta = lease.gradient(refs.norm1_bias)});
  attend_backward(step, layer, lease, kept.input, d_stream, d_stream, true);
}

void OptModel::embed_backward(Step& step) const {
  const UnitLease lease(units_, embedding_unit_);
  Tensor d_tokens = step.rows(step.data.d_stream);
  embedding_backward(step.stream, {.ids = step.batch.positions,
                                   .d_out = d_tokens,
                                   .d_table = lease.gradient(embed_positions_),
                                   .row_offset = OptConfig::kPositionOffset});
  if (project_in_.defined()) {
    const Tensor d_embedded = step.rows(step.data.d_embedded);
    linear_backward(step.stream, {.d_out = d_tokens,
                                  .x = step.rows(step.data.embedded),
                                  .weight = lease.weight(project_in_),
                                  .d_x = d_embedded,
                                  .d_weight = lease.gradient(project_in_)});
    d_tokens = d_embedded;
  }
  embedding_backward(step.stream,
                     {.ids = step.batch.tokens, .d_out = d_tokens, .d_table = lease.gradient(embed_tokens_)});
}

}  // namespace tercet
