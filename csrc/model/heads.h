// Heads on the last hidden state. Logits are never whole: the language-model head runs in chunks of rows, for the
// tokens that carry a loss only.
#pragma once

#include <functional>

#include "model/model.h"

namespace tercet {

// Rows of hidden states and the token that each predicts. Host memory; row t predicts the token at t + 1 of its
// sequence.
struct PredictionRows {
  std::vector<int32_t> rows;
  std::vector<int32_t> targets;

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// The rows that predict positions [from, length) of each sequence of the batch; `from[b]` >= 1.
PredictionRows prediction_rows(const RaggedBatch& batch, std::span<const int64_t> from);

struct LmHeadOptions {
  std::string prefix;
  DType dtype = DType::f32;
  int64_t max_rows = 0;      // predictions of one micro-batch
  int64_t chunk_rows = 256;  // logits in memory: [chunk_rows, vocab_size]
  bool training = false;
  Phase first = Phase::rollout;
  Phase last = Phase::save;
};

// How the gradient of a loss over log-probabilities is taken.
struct LossGradientOptions {
  double temperature = 1;
  bool entropy_gradient = false;  // the loss sets d_entropy too
  double loss_scale = 1;          // multiplies every gradient
};

// Log-probabilities and entropies over the tied token embedding.
class LmHead {
 public:
  // Gradients of the loss for rows [first, first + log_prob.rows()) given their log-probabilities and entropies. All
  // views have one entry per row; writes d_log_prob, and d_entropy when it is defined.
  struct Chunk {
    int64_t first = 0;
    Tensor log_prob, entropy;      // [R] in
    Tensor d_log_prob, d_entropy;  // [R] out
  };
  using Loss = std::function<void(Stream&, const Chunk&)>;

  static std::vector<Slot> footprint(const OptConfig& config, const LmHeadOptions& options);
  LmHead(const OptConfig& config, const LmHeadOptions& options, Arena& arena);

  // log_prob(), entropy() and likeliest() of each row at the temperature.
  void log_probs(Stream& stream, OptModel& model, const Tensor& hidden, const PredictionRows& rows,
                 double temperature = 1);

  // The same, then the gradient of the loss into d_hidden (written) and the token embedding (accumulated), chunk by
  // chunk.
  void loss_and_backward(Stream& stream, OptModel& model, const Tensor& hidden, const PredictionRows& rows,
                         const Loss& loss, const Tensor& d_hidden, const LossGradientOptions& options = {});

  // Which rows of hidden the next logits() are of, at most chunk_rows.
  void upload_rows(Stream& stream, std::span<const int32_t> rows);
  // Their logits, [R, V], valid until the next call.
  Tensor logits(Stream& stream, OptModel& model, const Tensor& hidden);

  Tensor log_prob() const;   // [R] statistics dtype, of the latest call
  Tensor entropy() const;    // [R]
  Tensor likeliest() const;  // [R] 1 where no token is likelier than the target, else 0

 private:
  void upload(Stream& stream, const PredictionRows& rows);
  void forward_chunk(Stream& stream, const Tensor& embedding, const Tensor& hidden, int64_t first, int64_t count,
                     double temperature);

  OptConfig config_;
  LmHeadOptions options_;
  int64_t rows_ = 0;
  Tensor device_rows_, targets_, all_log_prob_, all_entropy_, all_likeliest_;
  Tensor gathered_, logits_, log_sum_exp_, d_log_prob_, d_entropy_, d_gathered_;
};

struct ScalarHeadOptions {
  std::string prefix;
  DType dtype = DType::f32;
  int64_t max_rows = 0;
  bool training = false;
  Phase first = Phase::rollout;
  Phase last = Phase::save;
};

// r = w . h at chosen rows.
class ScalarHead {
 public:
  static std::vector<Slot> footprint(const OptConfig& config, const ScalarHeadOptions& options);
  ScalarHead(const OptConfig& config, const ScalarHeadOptions& options, Arena& arena);

  // Scores of the rows of hidden, [R], statistics dtype; valid until the next call.
  Tensor forward(Stream& stream, OptModel& model, const Tensor& hidden, std::span<const int32_t> rows);

  // Where the loss puts the gradient of the scores of the latest forward, [R].
  Tensor d_scores() const;

  // From d_scores() times the loss scale: d_hidden (written) and the gradient of w (accumulated), for the rows of the
  // latest forward. d_scores() is lost.
  void backward(Stream& stream, OptModel& model, const Tensor& d_hidden, double loss_scale = 1);

 private:
  ScalarHeadOptions options_;
  int64_t rows_ = 0;
  Tensor device_rows_, gathered_, d_gathered_, scores_, d_scores_;
  Tensor rounded_d_scores_;  // d_scores_ in the dtype of the activations
};

}  // namespace tercet
