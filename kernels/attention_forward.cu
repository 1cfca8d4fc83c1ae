// Attention of ragged sequences on the GPU, forward: the launcher. Kernels and design: attention_forward.cuh.
#include "kernels/attention_forward.cuh"
#include "kernels/gpu_ops.h"

namespace tercet::gpu {

void attention_forward(Stream& stream, const AttentionForwardArgs& args) {
  const int64_t tokens = require_attention(stream, args);
  if (args.log_sum_exp.defined())
    require_matrix(stream, args.log_sum_exp, DType::f32, tokens, args.heads, "log_sum_exp");
  dispatch_element(args.q.dtype, [&]<class T>() {
    if (tokens == 0) return;
    queue_forward<T>(stream,
                     {"attention_forward", args.q, args.k, args.v, args.out, args.log_sum_exp, args.heads, args.scale},
                     RaggedSequences{elements<const int32_t>(args.offsets), narrow<int>(args.offsets.rows() - 1)});
  });
}

}  // namespace tercet::gpu
