// Small models with their memory: random ones in the shapes that OPT comes in, and plain forwards to compare with.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/device.h"
#include "model/heads.h"
#include "model/model.h"
#include "model/model_file.h"
#include "rollout/generator.h"

namespace tercet::testing {

// The three shapes of OPT that differ in their operations.
inline OptConfig small_config(const std::string& shape) {
  OptConfig config;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.ffn_dim = 48;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 160;
  config.word_embed_proj_dim = 32;
  config.init_std = 0.15;
  if (shape == "post-LN with projections") {
    config.do_layer_norm_before = false;
    config.word_embed_proj_dim = 20;
  } else if (shape == "GELU without biases") {
    config.activation_function = Activation::gelu;
    config.enable_bias = false;
    config.layer_norm_elementwise_affine = false;
  } else {
    TERCET_REQUIRE(shape == "pre-LN", "unknown shape {}", shape);
  }
  return config;
}

inline const std::vector<std::string>& small_shapes() {
  static const std::vector<std::string> shapes = {"pre-LN", "post-LN with projections", "GELU without biases"};
  return shapes;
}

// A prompt of `length` tokens that begins with id 2.
inline std::vector<int32_t> random_prompt(int64_t length, uint64_t number, int64_t vocabulary) {
  const RandomStream random(17, RandomPurpose::test);
  std::vector<int32_t> ids = {2};
  while (std::ssize(ids) < length)
    ids.push_back(3 + static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary - 3), number,
                                                        static_cast<uint32_t>(ids.size()))));
  return ids;
}

// A model, memory for forwards without a cache, and whatever slots the test adds.
class SmallModel {
 public:
  static constexpr int64_t kTokens = 1024;
  static constexpr int64_t kSequences = 64;

  SmallModel(const OptConfig& config, DType dtype, const std::vector<Slot>& more = {},
             const std::string& device = "cpu")
      : units_({.prefix = "model", .dtype = dtype}),
        activations_options_{.prefix = "forward", .dtype = dtype, .capacity = {kTokens, kSequences}},
        head_options_{.prefix = "head", .dtype = dtype, .max_rows = kTokens, .chunk_rows = kTokens},
        device_(open_device(device)),
        stream_(device_->create_stream()),
        communicator_(single_communicator()),
        arena_(*device_, plan(config, more)),
        set_(opt_units(config, Head::language_model), units_, arena_, *stream_, *communicator_),
        model_(config, Head::language_model, set_),
        batch_("batch", {kTokens, kSequences}, arena_),
        activations_(config, activations_options_, arena_),
        head_(config, head_options_, arena_) {
    init_weights(*stream_, set_, config, 5);
    randomise_vectors();
  }

  Stream& stream() { return *stream_; }
  Arena& arena() { return arena_; }
  OptModel& model() { return model_; }
  UnitSet& units() { return set_; }
  DType dtype() const { return units_.dtype; }

  // Logits after each token of the batch, [T][V], by a forward without a cache.
  std::vector<double> logits(const RaggedBatch& batch) {
    forward(batch);
    std::vector<int32_t> rows(static_cast<size_t>(batch.token_count()));
    for (size_t row = 0; row < rows.size(); ++row) rows[row] = static_cast<int32_t>(row);
    return logits_of(activations_.output(), rows);
  }

  std::vector<double> logits_of(const Tensor& hidden, std::span<const int32_t> rows) {
    head_.upload_rows(*stream_, rows);
    return doubles(head_.logits(*stream_, model_, hidden));
  }

  // log p of the tokens of `response` after `prompt`, by the forward and the head that training uses.
  std::vector<double> log_probs(std::span<const int32_t> prompt, std::span<const int32_t> response,
                                double temperature) {
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    ids.insert(ids.end(), response.begin(), response.end());
    RaggedBatch batch;
    batch.append(ids, 0);
    forward(batch);
    const std::vector<int64_t> from = {std::ssize(prompt)};
    head_.log_probs(*stream_, model_, activations_.output(), prediction_rows(batch, from), temperature);
    return doubles(head_.log_prob());
  }

  std::vector<double> doubles(const Tensor& tensor) {
    std::vector<std::byte> raw(static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
    stream_->copy_to_host(raw.data(), tensor.data, raw.size());
    stream_->synchronize();
    std::vector<double> values(static_cast<size_t>(tensor.elements()));
    convert(tensor.dtype, raw.data(), DType::f64, values.data(), tensor.elements());
    return values;
  }

 private:
  MemoryPlan plan(const OptConfig& config, const std::vector<Slot>& more) const {
    MemoryPlan plan;
    plan.add(UnitSet::footprint(opt_units(config, Head::language_model), units_));
    plan.add(DeviceBatch::footprint("batch", {kTokens, kSequences}, Phase::rollout, Phase::save));
    plan.add(Activations::footprint(config, activations_options_));
    plan.add(LmHead::footprint(config, head_options_));
    plan.add(more);
    return plan;
  }

  void forward(const RaggedBatch& batch) {
    batch_.upload(*stream_, batch);
    model_.forward(*stream_, batch_, activations_);
  }

  // Biases and norms away from 0 and 1, so that leaving one out shows.
  void randomise_vectors() {
    const RandomStream random(23, RandomPurpose::test);
    for (int unit = 0; unit < set_.count(); ++unit)
      for (const SegmentSpec& segment : set_.spec(unit).segments)
        for (const TensorSpec& spec : segment.tensors) {
          if (spec.shape.size() != 1) continue;
          const Tensor tensor = set_.weight(spec.name);
          std::vector<double> values = doubles(tensor);
          for (size_t i = 0; i < values.size(); ++i)
            values[i] += 0.1 * random.normal(static_cast<uint64_t>(unit), static_cast<uint32_t>(spec.offset),
                                             static_cast<uint32_t>(i));
          std::vector<std::byte> raw(values.size() * dtype_size(tensor.dtype));
          convert(DType::f64, values.data(), tensor.dtype, raw.data(), tensor.elements());
          stream_->copy_to_device(tensor.data, raw.data(), raw.size());
          stream_->synchronize();
        }
  }

  UnitOptions units_;
  ActivationOptions activations_options_;
  LmHeadOptions head_options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  Arena arena_;
  UnitSet set_;
  OptModel model_;
  DeviceBatch batch_;
  Activations activations_;
  LmHead head_;
};

// A small model with a generator for it.
struct SmallGenerator {
  SmallGenerator(const OptConfig& config, const GeneratorOptions& options, const std::string& device = "cpu")
      : model(config, options.dtype, Generator::footprint(config, options), device),
        generator(model.model(), options, model.arena()) {}

  std::vector<Generation> generate(std::span<const GenerationRequest> requests, const SamplingOptions& sampling,
                                   const Generator::StopCheck& stop = {}) {
    return generator.generate(model.stream(), requests, sampling, stop);
  }

  SmallModel model;
  Generator generator;
};

// Room for prompts of 40 tokens and responses of 64, whatever the number of slots.
inline GeneratorOptions small_options(DType dtype, int64_t slots) {
  GeneratorOptions options;
  options.prefix = "generator";
  options.dtype = dtype;
  options.slots = slots;
  options.max_prompt_tokens = 40;
  options.max_new_tokens = 64;
  options.prefill_tokens = 100;
  options.truncating_sampler = true;
  return options;
}

// Requests with prompts of mixed lengths, 1 among them.
inline std::vector<GenerationRequest> mixed_requests(size_t count, int64_t max_new_tokens, int64_t vocabulary) {
  static constexpr int64_t lengths[] = {7, 1, 32, 33, 2, 40, 31, 12};
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < count; ++i)
    requests.push_back({random_prompt(lengths[i % std::size(lengths)], i, vocabulary), 100 + i, max_new_tokens});
  return requests;
}

}  // namespace tercet::testing
