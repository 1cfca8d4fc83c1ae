#include "model/activations.h"

#include <algorithm>

namespace tercet {
namespace {

// Calls visit(name, dtype, rows, columns, tensor) for every tensor that has a slot of its own; columns 0 is a vector.
template <class Visit>
void visit_layer(const OptConfig& config, const ActivationOptions& options, const std::string& name, bool whole,
                 LayerActivations& layer, const Visit& visit) {
  const int64_t tokens = options.capacity.tokens;
  const int64_t hidden = config.hidden_size;
  const DType statistics = statistics_dtype(options.dtype);
  visit(name + "/input", options.dtype, tokens, hidden, layer.input);
  if (!whole) return;
  visit(name + "/norm1", options.dtype, tokens, hidden, layer.norm1);
  visit(name + "/qkv", options.dtype, tokens, 3 * hidden, layer.qkv);
  visit(name + "/attended", options.dtype, tokens, hidden, layer.attended);
  visit(name + "/middle", options.dtype, tokens, hidden, layer.middle);
  visit(name + "/norm2", options.dtype, tokens, hidden, layer.norm2);
  visit(name + "/hidden", options.dtype, tokens, config.ffn_dim, layer.hidden);
  if (!options.training) return;
  if (config.activation_function == Activation::gelu)
    visit(name + "/before_activation", options.dtype, tokens, config.ffn_dim, layer.before_activation);
  visit(name + "/log_sum_exp", statistics, tokens, config.num_attention_heads, layer.log_sum_exp);
  visit(name + "/mean1", statistics, tokens, int64_t{0}, layer.mean1);
  visit(name + "/rstd1", statistics, tokens, int64_t{0}, layer.rstd1);
  visit(name + "/mean2", statistics, tokens, int64_t{0}, layer.mean2);
  visit(name + "/rstd2", statistics, tokens, int64_t{0}, layer.rstd2);
}

template <class Visit>
void visit_scratch(const OptConfig& config, const ActivationOptions& options, Activations::Data& data,
                   const Visit& visit) {
  const int64_t tokens = options.capacity.tokens;
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.word_embed_proj_dim;
  const DType statistics = statistics_dtype(options.dtype);
  visit("stream", options.dtype, tokens, hidden, data.stream);
  visit("output", options.dtype, tokens, width, data.output);
  if (config.has_projections()) {
    visit("embedded", options.dtype, tokens, width, data.embedded);
    visit("top", options.dtype, tokens, hidden, data.top);
  }
  if (config.has_final_layer_norm()) visit("final_sum", options.dtype, tokens, hidden, data.final_sum);
  if (!options.training) return;
  if (config.has_final_layer_norm()) {
    visit("final_mean", statistics, tokens, int64_t{0}, data.final_mean);
    visit("final_rstd", statistics, tokens, int64_t{0}, data.final_rstd);
  }
  visit("d_output", options.dtype, tokens, width, data.d_output);
  visit("d_stream", options.dtype, tokens, hidden, data.d_stream);
  visit("d_branch", options.dtype, tokens, hidden, data.d_branch);
  visit("d_norm", options.dtype, tokens, hidden, data.d_norm);
  visit("d_wide", options.dtype, tokens * std::max(3 * hidden, config.ffn_dim), int64_t{0}, data.d_wide);
  if (config.has_projections()) visit("d_embedded", options.dtype, tokens, width, data.d_embedded);
}

// Every block has tensors of its own when backward follows without recomputation; otherwise blocks share one set, and
// keep just their inputs when backward follows.
template <class Visit>
void visit_tensors(const OptConfig& config, const ActivationOptions& options, Activations::Data& data,
                   const Visit& visit) {
  const bool own = options.training && options.recompute == Recompute::none;
  data.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < data.layers.size(); ++i)
    if (i == 0 || options.training)
      visit_layer(config, options, fmt::format("layers.{}", i), i == 0 || own, data.layers[i], visit);
  visit_scratch(config, options, data, visit);
}

void share_first_layer(const ActivationOptions& options, std::vector<LayerActivations>& layers) {
  if (options.training && options.recompute == Recompute::none) return;
  for (size_t i = 1; i < layers.size(); ++i) {
    const Tensor own_input = layers[i].input;
    layers[i] = layers[0];
    if (options.training) layers[i].input = own_input;
  }
}

}  // namespace

std::vector<Slot> Activations::footprint(const OptConfig& config, const ActivationOptions& options) {
  std::vector<Slot> slots;
  Data data;
  visit_tensors(config, options, data,
                [&](const std::string& name, DType dtype, int64_t rows, int64_t columns, Tensor&) {
                  const auto elements = static_cast<size_t>(rows * std::max<int64_t>(columns, 1));
                  slots.push_back({options.prefix + "/" + name, MemoryClass::activations, elements * dtype_size(dtype),
                                   options.first, options.last});
                });
  return slots;
}

Activations::Activations(const OptConfig& config, const ActivationOptions& options, Arena& arena)
    : data_(std::make_unique<Data>()) {
  data_->config = config;
  data_->options = options;
  visit_tensors(config, options, *data_,
                [&](const std::string& name, DType dtype, int64_t rows, int64_t columns, Tensor& tensor) {
                  const std::string slot = options.prefix + "/" + name;
                  tensor = columns == 0 ? arena.take(slot, dtype, {rows}) : arena.take(slot, dtype, {rows, columns});
                });
  share_first_layer(options, data_->layers);
  if (!config.has_projections()) data_->top = data_->output;
}

Activations::~Activations() = default;

Tensor Activations::output() const { return data_->output.row_range(0, data_->tokens); }

Tensor Activations::d_output() const {
  TERCET_REQUIRE(data_->options.training, "activations of inference have no gradient");
  return data_->d_output.row_range(0, data_->tokens);
}

}  // namespace tercet
