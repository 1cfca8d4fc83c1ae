// Cases of generation: the KV cache, attention against it, and the draw of the next token.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/bench_cases.h"
#include "base/checked.h"
#include "base/rng.h"
#include "kernels/paged_attention.h"
#include "kernels/sample.h"

namespace tercet {
namespace {

// `slots` sequences with `fresh` new tokens each, after which they have `context` tokens.
struct CacheShape {
  int64_t slots, fresh, context;

  int64_t tokens() const { return slots * fresh; }
  int64_t blocks() const { return ceil_div(context, kKvBlockTokens); }
  std::vector<int32_t> cached() const {
    return std::vector<int32_t>(static_cast<size_t>(slots), static_cast<int32_t>(context - fresh));
  }
  // The blocks of the slots take turns, as they do when sequences grow together.
  std::vector<int32_t> table() const {
    std::vector<int32_t> entries;
    for (int64_t s = 0; s < slots; ++s)
      for (int64_t i = 0; i < blocks(); ++i) entries.push_back(static_cast<int32_t>(i * slots + s));
    return entries;
  }
  std::string words() const {
    return fresh == 1 ? fmt::format("{} slots of {}", slots, context) : fmt::format("{} prompts of {}", slots, context);
  }
};

CacheShape decoding_shape(const BenchSizes& sizes) { return {sizes.slots, 1, sizes.cached}; }

CacheShape prompt_shape(const BenchSizes& sizes) {
  const int64_t length = std::min({int64_t{256}, sizes.prompt_tokens, sizes.config.max_position_embeddings});
  return {sizes.prompt_tokens / length, length, length};
}

struct Cache {
  Tensor offsets, lengths, table, k, v;

  Cache(BenchTensors& t, const CacheShape& shape, DType dtype, int64_t hidden)
      : offsets(t.int32s(bench_offsets(shape.tokens(), shape.fresh))),
        lengths(t.int32s(shape.cached())),
        table(t.int32s(shape.table()).reshaped({shape.slots, shape.blocks()})),
        k(t.random(dtype, {shape.slots * shape.blocks(), kKvBlockTokens, hidden})),
        v(t.random(dtype, {shape.slots * shape.blocks(), kKvBlockTokens, hidden})) {}
};

void add_kv_cache_append(BenchCaseList& list, const CacheShape& shape) {
  const int64_t hidden = list.sizes().config.hidden_size;
  const DType dtype = list.sizes().dtype;
  list.add({.op = kv_cache_append.name(),
            .part = shape.fresh == 1 ? "decoding" : "prompts",
            .shape = shape.words(),
            .bytes = element_bytes(dtype) * 4 * shape.tokens() * hidden,  // k and v read and written
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const Cache cache(t, shape, dtype, hidden);
              const Tensor qkv = t.random(dtype, {shape.tokens(), 3 * hidden});
              const KvCacheAppendArgs args{.k = qkv.column_range(hidden, hidden),
                                           .v = qkv.column_range(2 * hidden, hidden),
                                           .offsets = cache.offsets,
                                           .lengths = cache.lengths,
                                           .block_table = cache.table,
                                           .k_cache = cache.k,
                                           .v_cache = cache.v};
              return {[args](Stream& s) { kv_cache_append(s, args); }};
            }});
}

void add_paged_attention(BenchCaseList& list, const CacheShape& shape) {
  const int64_t hidden = list.sizes().config.hidden_size, heads = list.sizes().config.num_attention_heads;
  const DType dtype = list.sizes().dtype;
  // Two products with what each query sees: all of the context, or on average half of it.
  const int64_t flops =
      shape.fresh == 1 ? 4 * shape.slots * shape.context * hidden : 2 * shape.tokens() * shape.context * hidden;
  list.add({.op = paged_attention.name(),
            .part = shape.fresh == 1 ? "decoding" : "prompts",
            .shape = fmt::format("{}, {} heads of {}", shape.words(), heads, hidden / heads),
            // k and v of the context read; q read, out written
            .bytes = element_bytes(dtype) * (2 * shape.slots * shape.context + 2 * shape.tokens()) * hidden,
            .flops = flops,
            .prepare = [=](BenchTensors& t) -> BenchCall {
              const Cache cache(t, shape, dtype, hidden);
              const PagedAttentionArgs args{.q = t.random(dtype, {shape.tokens(), 3 * hidden}).column_range(0, hidden),
                                            .offsets = cache.offsets,
                                            .lengths = cache.lengths,
                                            .block_table = cache.table,
                                            .k_cache = cache.k,
                                            .v_cache = cache.v,
                                            .out = t.zeros(dtype, {shape.tokens(), hidden}),
                                            .heads = heads,
                                            .scale = 1 / std::sqrt(static_cast<double>(hidden / heads))};
              return {[args](Stream& s) { paged_attention(s, args); }};
            }});
}

// Of the whole distribution, or of the top 50 tokens within 90 % of the probability.
void add_sample(BenchCaseList& list, bool truncated) {
  const int64_t slots = list.sizes().slots, vocabulary = list.sizes().config.vocab_size;
  const DType dtype = list.sizes().dtype, statistics = statistics_dtype(dtype);
  list.add({.op = sample.name(),
            .part = truncated ? "top-k, top-p" : "",
            .shape = fmt::format("{} x {}", slots, vocabulary),
            .bytes = element_bytes(dtype) * slots * vocabulary,  // logits read once
            .prepare = [=](BenchTensors& t) -> BenchCall {
              std::vector<int64_t> samples(static_cast<size_t>(slots));
              std::iota(samples.begin(), samples.end(), 0);
              const SampleArgs args{.logits = t.random(dtype, {slots, vocabulary}),
                                    .samples = t.int64s(samples),
                                    .positions = t.int32s(bench_ids(slots, 256, 1)),
                                    .ids = t.zeros(DType::i32, {slots}),
                                    .log_prob = t.zeros(statistics, {slots}),
                                    .scratch = truncated ? t.zeros(dtype, {slots, vocabulary}) : Tensor(),
                                    .key = RandomStream(1, RandomPurpose::test).key(),
                                    .top_k = truncated ? 50 : 0,
                                    .top_p = truncated ? 0.9 : 1};
              return {[args](Stream& s) { sample(s, args); }};
            }});
}

}  // namespace

void add_decoding_cases(BenchCaseList& list) {
  for (const CacheShape& shape : {decoding_shape(list.sizes()), prompt_shape(list.sizes())}) {
    add_kv_cache_append(list, shape);
    add_paged_attention(list, shape);
  }
  add_sample(list, false);
  add_sample(list, true);
}

}  // namespace tercet
