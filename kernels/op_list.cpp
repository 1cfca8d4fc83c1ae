#include "kernels/op_list.h"

#include <algorithm>
#include <array>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/paged_attention.h"
#include "kernels/ppo.h"
#include "kernels/ranking_loss.h"
#include "kernels/sample.h"
#include "kernels/token_log_prob.h"

namespace tercet {
namespace {

constexpr std::array kCpuCompute = {DType::f32, DType::f64};
// Conversions and 16-bit weights beside an fp32 master are host arithmetic too.
constexpr std::array kCpuStorage = {DType::f32, DType::f64, DType::bf16, DType::f16};

const std::array kOps = {
    OpEntry{adamw.name(), kCpuStorage},
    OpEntry{add_scaled.name(), kCpuCompute},
    OpEntry{affine.name(), kCpuCompute},
    OpEntry{attention_backward.name(), kCpuCompute},
    OpEntry{attention_forward.name(), kCpuCompute},
    OpEntry{cast.name(), kCpuStorage},
    OpEntry{centered_sums.name(), kCpuCompute},
    OpEntry{dropout.name(), kCpuCompute},
    OpEntry{embedding_backward.name(), kCpuCompute},
    OpEntry{embedding_forward.name(), kCpuCompute},
    OpEntry{gae.name(), kCpuCompute},
    OpEntry{gather_rows.name(), kCpuCompute},
    OpEntry{kv_cache_append.name(), kCpuCompute},
    OpEntry{layer_norm_backward.name(), kCpuCompute},
    OpEntry{layer_norm_forward.name(), kCpuCompute},
    OpEntry{linear_backward.name(), kCpuCompute},
    OpEntry{linear_forward.name(), kCpuCompute},
    OpEntry{moving_average.name(), kCpuCompute},
    OpEntry{paged_attention.name(), kCpuCompute},
    OpEntry{ppo_policy_loss.name(), kCpuCompute},
    OpEntry{ppo_value_loss.name(), kCpuCompute},
    OpEntry{ranking_loss.name(), kCpuCompute},
    OpEntry{reward_shaping.name(), kCpuCompute},
    OpEntry{sample.name(), kCpuCompute},
    OpEntry{scatter_add_rows.name(), kCpuCompute},
    OpEntry{sum_of_squares.name(), kCpuCompute},
    OpEntry{token_log_prob_backward.name(), kCpuCompute},
    OpEntry{token_log_prob_forward.name(), kCpuCompute},
    OpEntry{token_ranking_loss.name(), kCpuCompute},
    OpEntry{whiten.name(), kCpuCompute},
};

}  // namespace

bool OpEntry::supports(DeviceKind device, DType dtype) const {
  return device == DeviceKind::cpu && std::find(cpu.begin(), cpu.end(), dtype) != cpu.end();
}

std::span<const OpEntry> all_ops() { return kOps; }

const OpEntry& find_op(std::string_view name) {
  for (const OpEntry& entry : kOps)
    if (name == entry.name) return entry;
  fail_run(fmt::format("no op is called {}", name));
}

}  // namespace tercet
