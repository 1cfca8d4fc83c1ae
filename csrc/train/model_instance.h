// ModelInstance: one OPT model of a run with everything that it needs to be trained or to score: units, activations,
// heads, batch and optimiser, all from the memory plan.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "model/heads.h"
#include "model/model_file.h"
#include "optim/optimizer.h"

namespace tercet {

struct ModelInstanceOptions {
  std::string prefix;  // "model", "actor", "critic", "reference", "reward"
  OptConfig config;
  Head head = Head::language_model;
  DType dtype = DType::f32;
  BatchCapacity capacity;
  int64_t head_chunk_rows = 256;
  bool training = false;
  Recompute recompute = Recompute::none;
  AdamWOptions optimizer;  // training only; its prefix is set by the instance
  Phase train_phase = Phase::train_actor;
  Phase gradient_last = Phase::train_actor;
  bool inference = true;  // forward passes outside train_phase
  Phase inference_first = Phase::score;
  Phase inference_last = Phase::score;
};

class ModelInstance {
 public:
  static std::vector<Slot> footprint(const ModelInstanceOptions& options);
  ModelInstance(const ModelInstanceOptions& options, Arena& arena, Stream& stream, Communicator& communicator);
  ~ModelInstance();

  const ModelInstanceOptions& options() const;
  UnitSet& units();
  OptModel& model();
  AdamW& optimizer();  // training only

  // Inference. Values of each row at the temperature, on the host.
  struct TokenValues {
    std::vector<double> log_probs;
    std::vector<double> entropies;
    std::vector<double> likeliest;  // 1 where no token is likelier than the row's, else 0
  };
  TokenValues log_probs(const RaggedBatch& batch, const PredictionRows& rows, double temperature = 1);
  // Inference. The last hidden states, [tokens, word_embed_proj_dim], row by row on the host.
  std::vector<double> hidden_states(const RaggedBatch& batch);
  // Inference. Raw scores w . h of the rows.
  std::vector<double> scores(const RaggedBatch& batch, std::span<const int32_t> rows);

  // Forward and backward of one micro-batch; gradients accumulate, times the optimiser's loss scale. `loss` is called
  // per chunk (heads.h).
  void accumulate_token_loss(const RaggedBatch& batch, const PredictionRows& rows, const LmHead::Loss& loss,
                             double temperature = 1, bool entropy_gradient = false, const DropoutOptions& dropout = {});
  // The same for the loss `scale` times the sum of the rows' cross-entropies; returns the rows' values.
  TokenValues accumulate_cross_entropy(const RaggedBatch& batch, const PredictionRows& rows, double scale,
                                       const DropoutOptions& dropout = {});
  // `loss(scores, d_scores)`: reads the scores [R] of the rows, writes their gradient.
  using ScoreLoss = std::function<void(Stream&, const Tensor& scores, const Tensor& d_scores)>;
  void accumulate_score_loss(const RaggedBatch& batch, std::span<const int32_t> rows, const ScoreLoss& loss,
                             const DropoutOptions& dropout = {});

  // FLOP of all passes so far (forward_flops; a pass with a backward counts three times).
  double flops() const;

  // Weights, Adam moments, step count and loss scale for checkpoints: tensors "<prefix>/weights/<name>",
  // "<prefix>/m/<name>", "<prefix>/v/<name>".
  uint64_t checkpoint_bytes();
  void save(class Hdf5Writer& file, Json& state);
  void load(const class Hdf5Reader& file, const Json& state);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Values of a device tensor (fp32 or fp64) on the host.
std::vector<double> to_host(Stream& stream, const Tensor& tensor);
// The reverse; sizes must agree.
void to_device(Stream& stream, std::span<const double> values, const Tensor& tensor);

}  // namespace tercet
