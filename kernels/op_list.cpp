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
constexpr std::array kGpuCompute = {DType::f32, DType::bf16, DType::f16};
// Log-probabilities, rewards, values and their sums are statistics: fp32 on a GPU whatever the elements are.
constexpr std::array kGpuStatistics = {DType::f32};

const std::array kOps = {
    OpEntry{adamw.name(), kCpuStorage, kGpuCompute},
    OpEntry{add_scaled.name(), kCpuCompute, kGpuCompute},
    OpEntry{affine.name(), kCpuCompute, kGpuCompute},
    OpEntry{attention_backward.name(), kCpuCompute, kGpuCompute},
    OpEntry{attention_forward.name(), kCpuCompute, kGpuCompute},
    OpEntry{cast.name(), kCpuStorage, kGpuCompute},
    OpEntry{centered_sums.name(), kCpuCompute, kGpuStatistics},
    OpEntry{dropout.name(), kCpuCompute, kGpuCompute},
    OpEntry{embedding_backward.name(), kCpuCompute, kGpuCompute},
    OpEntry{embedding_forward.name(), kCpuCompute, kGpuCompute},
    OpEntry{gae.name(), kCpuCompute, kGpuStatistics},
    OpEntry{gather_rows.name(), kCpuCompute, kGpuCompute},
    OpEntry{kv_cache_append.name(), kCpuCompute, kGpuCompute},
    OpEntry{layer_norm_backward.name(), kCpuCompute, kGpuCompute},
    OpEntry{layer_norm_forward.name(), kCpuCompute, kGpuCompute},
    OpEntry{linear_backward.name(), kCpuCompute, kGpuCompute},
    OpEntry{linear_forward.name(), kCpuCompute, kGpuCompute},
    OpEntry{moving_average.name(), kCpuCompute, kGpuCompute},
    OpEntry{paged_attention.name(), kCpuCompute, kGpuCompute},
    OpEntry{ppo_policy_loss.name(), kCpuCompute, kGpuStatistics},
    OpEntry{ppo_value_loss.name(), kCpuCompute, kGpuStatistics},
    OpEntry{ranking_loss.name(), kCpuCompute, kGpuCompute},
    OpEntry{reward_shaping.name(), kCpuCompute, kGpuStatistics},
    OpEntry{sample.name(), kCpuCompute, kGpuCompute},
    OpEntry{scatter_add_rows.name(), kCpuCompute, kGpuCompute},
    OpEntry{sum_of_squares.name(), kCpuCompute, kGpuCompute},
    OpEntry{token_log_prob_backward.name(), kCpuCompute, kGpuCompute},
    OpEntry{token_log_prob_forward.name(), kCpuCompute, kGpuCompute},
    OpEntry{token_ranking_loss.name(), kCpuCompute, kGpuCompute},
    OpEntry{whiten.name(), kCpuCompute, kGpuStatistics},
};

}  // namespace

bool OpEntry::supports(DeviceKind device, DType dtype) const {
  const std::span<const DType> dtypes = device == DeviceKind::cpu ? cpu : gpu;
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

std::span<const OpEntry> all_ops() { return kOps; }

const OpEntry& find_op(std::string_view name) {
  for (const OpEntry& entry : kOps)
    if (name == entry.name) return entry;
  fail_run(fmt::format("no op is called {}", name));
}

}  // namespace tercet
