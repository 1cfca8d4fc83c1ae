// Attention of new tokens against a KV cache that lies in blocks of 32 tokens behind a block table.
// W. Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023.
#pragma once

#include "kernels/op.h"

namespace tercet {

inline constexpr int64_t kKvBlockTokens = 32;

// Stores the keys and values of new tokens. New token i of slot s is position lengths[s] + i of that slot, and position
// p lies in row p % 32 of block block_table[s, p / 32].
struct KvCacheAppendArgs {
  Tensor k, v;              // [T, H] new tokens, any pitch
  Tensor offsets;           // [S+1] int32: slot s has new tokens [offsets[s], offsets[s+1]); none is legal
  Tensor lengths;           // [S] int32: tokens cached before this call
  Tensor block_table;       // [S, blocks per slot] int32
  Tensor k_cache, v_cache;  // [blocks, 32, H]
};
// Throws Error(Fault::run) when a token does not fit its slot's table or the table names a block outside the cache.
extern const Op<KvCacheAppendArgs> kv_cache_append;

// Causal attention of the new tokens, whose own keys and values are in the cache already: query i of slot s sees
// positions [0, lengths[s] + i]. Same formula as attention_forward.
struct PagedAttentionArgs {
  Tensor q;                 // [T, H] new tokens, any pitch
  Tensor offsets;           // [S+1] int32
  Tensor lengths;           // [S] int32: tokens cached before the new ones
  Tensor block_table;       // [S, blocks per slot] int32
  Tensor k_cache, v_cache;  // [blocks, 32, H]
  Tensor out;               // [T, H] written
  int64_t heads = 1;
  double scale = 1;
};
extern const Op<PagedAttentionArgs> paged_attention;

}  // namespace tercet
