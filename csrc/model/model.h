// OptModel: forward and backward over ragged batches.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "kernels/attention.h"
#include "model/config.h"
#include "shard/unit.h"

namespace tercet {

enum class Head {
  language_model,  // logits by the tied token embedding
  scalar,          // r = w . h, no bias; one more unit, "score"
};

enum class Recompute {
  none,
  block,  // keep the input of each block only, compute the rest again in the backward pass
};

// The units of an OPT model: "embedding", "layers.0" ..., "final" (when it has tensors) and "score" (scalar head).
std::vector<UnitSpec> opt_units(const OptConfig& config, Head head);

// The most that one micro-batch can hold.
struct BatchCapacity {
  int64_t tokens = 0;
  int64_t sequences = 0;
};

// A ragged batch on the device.
class DeviceBatch {
 public:
  static std::vector<Slot> footprint(const std::string& name, const BatchCapacity& capacity, Phase first, Phase last);
  DeviceBatch(const std::string& name, const BatchCapacity& capacity, Arena& arena);

  // Throws Error(Fault::run) when the batch exceeds the capacity.
  void upload(Stream& stream, const RaggedBatch& batch);

  Tensor tokens, offsets, positions, samples;  // views of the present batch: [T], [B+1], [T] int32, [T] int64
  int64_t token_count() const { return tokens.rows(); }

 private:
  std::string name_;
  BatchCapacity capacity_;
  Tensor all_tokens_, all_offsets_, all_positions_, all_samples_;
};

// The KV cache of all layers, in blocks of 32 tokens behind a block table (kernels/paged_attention.h).
struct KvCacheView {
  std::vector<Tensor> k, v;  // per layer, [blocks, 32, H]
  Tensor block_table;        // [S, blocks per slot] int32
  Tensor lengths;            // [S] int32: tokens cached before this forward
};

struct ActivationOptions {
  std::string prefix;  // of all slot names
  DType dtype = DType::f32;
  BatchCapacity capacity;
  bool training = false;  // keeps what backward needs
  Recompute recompute = Recompute::none;
  Phase first = Phase::rollout;
  Phase last = Phase::save;
};

// The activations of one micro-batch, and the scratch memory of forward and backward.
class Activations {
 public:
  struct Data;  // model/activations.h

  static std::vector<Slot> footprint(const OptConfig& config, const ActivationOptions& options);
  Activations(const OptConfig& config, const ActivationOptions& options, Arena& arena);
  ~Activations();

  // [T, word_embed_proj_dim]: the last hidden state of the latest forward.
  Tensor output() const;
  // [T, word_embed_proj_dim]: where the heads put the gradient of output(); training only.
  Tensor d_output() const;

  Data& data() { return *data_; }

 private:
  std::unique_ptr<Data> data_;
};

// Dropout of one forward and its backward: the mask is a function of `key`, the layer, sample and position.
struct DropoutOptions {
  double rate = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
};

// Computes OPT as Hugging Face transformers does (facts: model table and order of operations), on weights that a
// UnitSet holds.
class OptModel {
 public:
  OptModel(const OptConfig& config, Head head, UnitSet& units);

  const OptConfig& config() const { return config_; }
  Head head() const { return head_; }
  UnitSet& units() { return units_; }

  // Last hidden states of the batch into activations.output(). With a cache the tokens are new tokens of its slots (one
  // sequence per slot), whose keys and values are appended; such activations cannot be used for backward.
  void forward(Stream& stream, const DeviceBatch& batch, Activations& activations, const DropoutOptions& dropout = {},
               const KvCacheView* cache = nullptr);

  // Accumulates all parameter gradients (heads excepted) from activations.d_output() of the batch whose forward was the
  // latest on these activations. `dropout` must be that of the forward.
  void backward(Stream& stream, const DeviceBatch& batch, Activations& activations, const DropoutOptions& dropout = {});

  // Unit numbers and tensors that heads need.
  int embedding_unit() const { return embedding_unit_; }
  TensorRef token_embedding() const { return embed_tokens_; }
  int score_unit() const { return score_unit_; }
  TensorRef score_weight() const { return score_weight_; }

 private:
  struct LayerRefs {
    int unit;
    TensorRef qkv, qkv_bias, out, out_bias, fc1, fc1_bias, fc2, fc2_bias;
    TensorRef norm1, norm1_bias, norm2, norm2_bias;
  };
  struct Step;  // what the parts of one forward or backward share

  void embed(Step& step) const;
  void attend(Step& step, int layer, const UnitLease& lease, const Tensor& input) const;
  void feed_forward_in(Step& step, int layer, const UnitLease& lease, const Tensor& input) const;
  void feed_forward_out(Step& step, int layer, const UnitLease& lease) const;
  void block_pre_norm(Step& step, int layer, bool again) const;
  void block_post_norm(Step& step, int layer) const;
  void finish(Step& step) const;
  void finish_backward(Step& step) const;
  void attend_backward(Step& step, int layer, const UnitLease& lease, const Tensor& input, const Tensor& d_out,
                       const Tensor& d_input, bool accumulate) const;
  void feed_forward_backward(Step& step, int layer, const UnitLease& lease, const Tensor& input, const Tensor& d_out,
                             const Tensor& d_input, bool accumulate) const;
  void block_backward_pre_norm(Step& step, int layer) const;
  void block_backward_post_norm(Step& step, int layer) const;
  void embed_backward(Step& step) const;

  OptConfig config_;
  Head head_;
  UnitSet& units_;
  int embedding_unit_ = -1, final_unit_ = -1, score_unit_ = -1;
  TensorRef embed_tokens_, embed_positions_, project_in_, project_out_, final_norm_, final_norm_bias_, score_weight_;
  std::vector<LayerRefs> layers_;
};

}  // namespace tercet
