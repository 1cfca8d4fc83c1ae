#include "kernels/gpu_ops.h"

#include <array>

namespace tercet::gpu {
namespace {

template <class Args>
OpImplementation entry(const char* name, void (*launcher)(Stream&, const Args&)) {
  return {name, reinterpret_cast<Device::Implementation>(launcher)};
}

}  // namespace

std::span<const OpImplementation> op_implementations() {
  static const std::array entries = {
      entry("adamw", adamw),
      entry("add_scaled", add_scaled),
      entry("affine", affine),
      entry("attention_backward", attention_backward),
      entry("attention_forward", attention_forward),
      entry("cast", cast),
      entry("centered_sums", centered_sums),
      entry("dropout", dropout),
      entry("embedding_backward", embedding_backward),
      entry("embedding_forward", embedding_forward),
      entry("gae", gae),
      entry("gather_rows", gather_rows),
      entry("kv_cache_append", kv_cache_append),
      entry("layer_norm_backward", layer_norm_backward),
      entry("layer_norm_forward", layer_norm_forward),
      entry("linear_backward", linear_backward),
      entry("linear_forward", linear_forward),
      entry("moving_average", moving_average),
      entry("paged_attention", paged_attention),
      entry("ppo_policy_loss", ppo_policy_loss),
      entry("ppo_value_loss", ppo_value_loss),
      entry("ranking_loss", ranking_loss),
      entry("reward_shaping", reward_shaping),
      entry("sample", sample),
      entry("scatter_add_rows", scatter_add_rows),
      entry("sum_of_squares", sum_of_squares),
      entry("token_log_prob_backward", token_log_prob_backward),
      entry("token_log_prob_forward", token_log_prob_forward),
      entry("token_ranking_loss", token_ranking_loss),
      entry("whiten", whiten),
  };
  return entries;
}

}  // namespace tercet::gpu
