#include "model/flops.h"

namespace tercet {

double forward_flops(const OptConfig& config, Head head, std::span<const int64_t> lengths, int64_t head_rows) {
  const auto hidden = static_cast<double>(config.hidden_size), width = static_cast<double>(config.word_embed_proj_dim);
  const double block = 4 * hidden * hidden + 2 * hidden * static_cast<double>(config.ffn_dim);
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const double weights = layers * block + (config.has_projections() ? 2 * hidden * width : 0);
  const double outputs = head == Head::scalar ? 1 : static_cast<double>(config.vocab_size);
  double flops = 2 * width * outputs * static_cast<double>(head_rows);
  for (const int64_t length : lengths) {
    const auto tokens = static_cast<double>(length);
    flops += 2 * weights * tokens + layers * 2 * tokens * tokens * hidden;
  }
  return flops;
}

}  // namespace tercet
