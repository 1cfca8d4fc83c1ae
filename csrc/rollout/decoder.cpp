#include "rollout/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/checked.h"
#include "base/rng.h"

namespace tercet {
namespace {

KvCacheOptions cache_options(const GeneratorOptions& options) {
  return {options.prefix, options.dtype, options.slots, checked_add(options.max_prompt_tokens, options.max_new_tokens),
          options.first,  options.last};
}

BatchCapacity batch_capacity(const GeneratorOptions& options) {
  return {checked_add(options.prefill_tokens, options.slots), options.slots};
}

ActivationOptions activation_options(const GeneratorOptions& options) {
  return {.prefix = options.prefix + "/activations",
          .dtype = options.dtype,
          .capacity = batch_capacity(options),
          .training = false,
          .recompute = Recompute::none,
          .first = options.first,
          .last = options.last};
}

LmHeadOptions head_options(const GeneratorOptions& options) {
  return {.prefix = options.prefix + "/head",
          .dtype = options.dtype,
          .max_rows = options.slots,
          .chunk_rows = options.slots,
          .training = false,
          .first = options.first,
          .last = options.last};
}

std::string batch_name(const GeneratorOptions& options) { return options.prefix + "/batch"; }

std::string sampler_name(const GeneratorOptions& options, const char* what) {
  return fmt::format("{}/sampler/{}", options.prefix, what);
}

void require_valid(const GeneratorOptions& options) {
  TERCET_REQUIRE(options.slots >= 1 && options.max_prompt_tokens >= 1 && options.max_new_tokens >= 1,
                 "a generator with {} slots, {} prompt tokens and {} new tokens", options.slots,
                 options.max_prompt_tokens, options.max_new_tokens);
  TERCET_REQUIRE(options.prefill_tokens >= options.max_prompt_tokens,
                 "a prompt may have {} tokens and a forward takes {} of them", options.max_prompt_tokens,
                 options.prefill_tokens);
}

}  // namespace

std::vector<Slot> Decoder::footprint(const OptConfig& config, const GeneratorOptions& options) {
  require_valid(options);
  std::vector<Slot> slots = KvCache::footprint(config, cache_options(options));
  const auto append = [&](const std::vector<Slot>& more) { slots.insert(slots.end(), more.begin(), more.end()); };
  append(Activations::footprint(config, activation_options(options)));
  append(LmHead::footprint(config, head_options(options)));
  append(DeviceBatch::footprint(batch_name(options), batch_capacity(options), options.first, options.last));
  const auto add = [&](const char* what, MemoryClass memory_class, int64_t elements, DType dtype) {
    slots.push_back({sampler_name(options, what), memory_class, narrow<size_t>(elements) * dtype_size(dtype),
                     options.first, options.last});
  };
  add("samples", MemoryClass::batch, options.slots, DType::i64);
  add("positions", MemoryClass::batch, options.slots, DType::i32);
  add("ids", MemoryClass::batch, options.slots, DType::i32);
  add("log_prob", MemoryClass::workspace, options.slots, statistics_dtype(options.dtype));
  if (options.truncating_sampler)
    add("scratch", MemoryClass::workspace, checked_mul(options.slots, config.vocab_size), options.dtype);
  return slots;
}

Decoder::Decoder(OptModel& model, const GeneratorOptions& options, Arena& arena)
    : model_(model),
      options_(options),
      cache_(model.config(), cache_options(options), arena),
      activations_(model.config(), activation_options(options), arena),
      head_(model.config(), head_options(options), arena),
      batch_(batch_name(options), batch_capacity(options), arena) {
  samples_ = arena.take(sampler_name(options, "samples"), DType::i64, {options.slots});
  positions_ = arena.take(sampler_name(options, "positions"), DType::i32, {options.slots});
  ids_ = arena.take(sampler_name(options, "ids"), DType::i32, {options.slots});
  log_prob_ = arena.take(sampler_name(options, "log_prob"), statistics_dtype(options.dtype), {options.slots});
  if (options.truncating_sampler)
    scratch_ = arena.take(sampler_name(options, "scratch"), options.dtype, {options.slots, model.config().vocab_size});
}

std::span<const SampledToken> Decoder::step(Stream& stream, std::span<const NewTokens> sequences,
                                            const SamplingOptions& sampling) {
  const int64_t idle = idle_sequences(stream, sequences);
  upload(stream, sequences, idle);
  const bool decoding = host_batch_.token_count() == host_batch_.sequences();
  if (decoding && options_.graphs && stream.device().kind() != DeviceKind::cpu)
    queue_decoding(stream, sample_args(sampling));
  else
    queue(stream, sample_args(sampling));
  read_back(stream, sequences.size());
  for (size_t row = 0; row < sequences.size(); ++row)
    if (!std::isfinite(drawn_[row].log_prob))
      fail_run(
          fmt::format("the log-probability of token {} of a response is not finite", sequences[row].response_index),
          fmt::format("logits after {} tokens", sequences[row].cached + std::ssize(sequences[row].ids)),
          "the model's weights have diverged: go back to an earlier checkpoint or lower the learning rate");
  return drawn_;
}

int64_t Decoder::idle_sequences(Stream& stream, std::span<const NewTokens> sequences) const {
  if (stream.device().kind() == DeviceKind::cpu) return 0;
  if (!std::ranges::all_of(sequences, [](const NewTokens& tokens) { return tokens.ids.size() == 1; })) return 0;
  const size_t padded = std::min(std::bit_ceil(sequences.size()), static_cast<size_t>(options_.slots));
  return static_cast<int64_t>(padded - sequences.size());
}

void Decoder::upload(Stream& stream, std::span<const NewTokens> sequences, int64_t idle) {
  host_batch_.clear();
  cache_rows_.clear();
  last_rows_.clear();
  host_samples_.clear();
  host_positions_.clear();
  for (const NewTokens& tokens : sequences) {
    TERCET_REQUIRE(!tokens.ids.empty(), "a step without a token in slot {}", tokens.slot);
    const auto first = static_cast<size_t>(host_batch_.token_count());
    host_batch_.append(tokens.ids, tokens.sample);
    for (size_t t = first; t < host_batch_.positions.size(); ++t)
      host_batch_.positions[t] += narrow<int32_t>(tokens.cached);
    cache_rows_.push_back({tokens.slot, tokens.cached});
    last_rows_.push_back(narrow<int32_t>(host_batch_.token_count() - 1));
    host_samples_.push_back(static_cast<int64_t>(tokens.sample));
    host_positions_.push_back(narrow<int32_t>(tokens.response_index));
  }
  host_batch_.append_idle(idle);
  for (int64_t row = host_batch_.token_count() - idle; row < host_batch_.token_count(); ++row)
    last_rows_.push_back(narrow<int32_t>(row));
  host_samples_.resize(last_rows_.size());
  host_positions_.resize(last_rows_.size());
  batch_.upload(stream, host_batch_);
  head_.upload_rows(stream, last_rows_);
  stream.copy_to_device(samples_.data, host_samples_.data(), host_samples_.size() * sizeof(int64_t));
  stream.copy_to_device(positions_.data, host_positions_.data(), host_positions_.size() * sizeof(int32_t));
  cache_view_ = &cache_.upload(stream, cache_rows_, idle);
}

SampleArgs Decoder::sample_args(const SamplingOptions& sampling) const {
  const auto rows = std::ssize(last_rows_);
  SampleArgs args{.logits = {},
                  .samples = samples_.row_range(0, rows),
                  .positions = positions_.row_range(0, rows),
                  .ids = ids_.row_range(0, rows),
                  .log_prob = log_prob_.row_range(0, rows),
                  .scratch = {},
                  .key = RandomStream(sampling.seed, RandomPurpose::sampling, sampling.site).key(),
                  .temperature = sampling.temperature};
  if (sampling.temperature > 0 && (sampling.top_k > 0 || sampling.top_p < 1)) {
    TERCET_REQUIRE(scratch_.defined(), "top-k and top-p need a generator that was planned for them");
    args.top_k = sampling.top_k;
    args.top_p = sampling.top_p;
    args.scratch = scratch_.row_range(0, rows);
  }
  return args;
}

void Decoder::queue(Stream& stream, const SampleArgs& args) {
  model_.forward(stream, batch_, activations_, {}, cache_view_);
  SampleArgs draw = args;
  draw.logits = head_.logits(stream, model_, activations_.output());
  sample(stream, draw);
}

void Decoder::queue_decoding(Stream& stream, const SampleArgs& args) {
  const GraphKey key{&stream, args.key, args.temperature, args.top_k, args.top_p};
  if (key != graph_key_) {
    for (auto& [sequences, graph] : graphs_) graph.reset();
    graph_key_ = key;
  }
  const auto [known, first] = graphs_.try_emplace(args.ids.rows());
  if (first) return queue(stream, args);
  auto& gpu = static_cast<GpuStream&>(stream);
  if (known->second == nullptr) known->second = capture(gpu, [&] { queue(stream, args); });
  gpu.launch(*known->second);
  ++replayed_steps_;
}

void Decoder::read_back(Stream& stream, size_t count) {
  host_ids_.resize(count);
  host_log_prob_.resize(count * dtype_size(log_prob_.dtype));
  stream.copy_to_host(host_ids_.data(), ids_.data, count * sizeof(int32_t));
  stream.copy_to_host(host_log_prob_.data(), log_prob_.data, host_log_prob_.size());
  stream.synchronize();
  drawn_.resize(count);
  for (size_t row = 0; row < count; ++row) {
    drawn_[row].id = host_ids_[row];
    convert(log_prob_.dtype, host_log_prob_.data() + row * dtype_size(log_prob_.dtype), DType::f64,
            &drawn_[row].log_prob, 1);
  }
}

}  // namespace tercet
