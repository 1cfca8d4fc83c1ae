#include "app/bench_cases.h"

#include <algorithm>

#include "train/model_instance.h"

namespace tercet {

double BenchCase::floor_seconds(const DeviceRates& rates) const {
  return std::max(static_cast<double>(bytes) / rates.copy, static_cast<double>(flops) / rates.reference_flops());
}

BenchSizes bench_sizes(const std::string& model, const OptConfig& config, DType dtype, int64_t tokens) {
  constexpr int64_t kLeastTokens = 16;
  if (tokens < kLeastTokens)
    fail_input(fmt::format("{} tokens are too few for the shapes", tokens), "--tokens",
               fmt::format("give at least {}", kLeastTokens));
  BenchSizes sizes{.model = model, .config = config, .dtype = dtype, .tokens = tokens};
  sizes.sequence = std::min({int64_t{512}, tokens / 2, config.max_position_embeddings});
  sizes.response = std::max<int64_t>(1, sizes.sequence / 2);
  sizes.slots = std::min<int64_t>(64, tokens / 8);
  sizes.cached = std::min<int64_t>(384, config.max_position_embeddings);
  sizes.prompt_tokens = tokens / 8;
  const int64_t chunk = ModelInstanceOptions{}.head_chunk_rows;
  for (const int64_t rows : {chunk, int64_t{2048}})
    if (rows <= tokens && (sizes.chunks.empty() || rows != chunk)) sizes.chunks.push_back(rows);
  if (sizes.chunks.empty()) sizes.chunks.push_back(tokens);
  return sizes;
}

void BenchCaseList::add(BenchCase one) {
  one.model = sizes_.model;
  one.dtype = sizes_.dtype;
  cases_.push_back(std::move(one));
}

void BenchCaseList::add_statistics(BenchCase one) {
  one.model = sizes_.model;
  one.dtype = statistics_dtype(sizes_.dtype);
  cases_.push_back(std::move(one));
}

std::vector<BenchCase> bench_cases(const BenchSizes& sizes) {
  BenchCaseList list(sizes);
  add_layer_cases(list);
  add_head_cases(list);
  add_decoding_cases(list);
  add_optimizer_cases(list);
  add_loss_cases(list);
  return list.take();
}

}  // namespace tercet
