// A ModelInstance with its memory, for tests of whole models.
#pragma once

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "device/device.h"
#include "store/safetensors.h"
#include "train/model_instance.h"

namespace tercet::testing {

struct TestModelOptions {
  std::string device = "cpu";
  Head head = Head::language_model;
  DType dtype = DType::f64;
  int64_t tokens = 256;
  int64_t chunk_rows = 7;  // several chunks, the last one not full
  Recompute recompute = Recompute::none;
  AdamWOptions optimizer;
};

class TestModel {
 public:
  TestModel(const OptConfig& config, const TestModelOptions& o = {})
      : device_(open_device(o.device)),
        stream_(device_->create_stream()),
        communicator_(single_communicator()),
        options_(instance(config, o)) {
    MemoryPlan plan;
    plan.add(ModelInstance::footprint(options_));
    plan.add_outside(device_->stream_footprint());
    arena_ = std::make_unique<Arena>(*device_, plan);
    model_ = std::make_unique<ModelInstance>(options_, *arena_, *stream_, *communicator_);
    arena_->require_all_taken();
  }

  ModelInstance& operator*() { return *model_; }
  ModelInstance* operator->() { return model_.get(); }
  Stream& stream() { return *stream_; }
  const OptConfig& config() const { return options_.config; }

  // The master weight where there is one.
  std::vector<double> weight(const std::string& name) { return to_host(*stream_, model_->units().exact_weight(name)); }
  std::vector<double> gradient(const std::string& name) { return to_host(*stream_, model_->units().gradient(name)); }
  void set_weight(const std::string& name, std::span<const double> values) {
    to_device(*stream_, values, model_->units().exact_weight(name));
    model_->units().round_weights(*stream_);
  }

  std::vector<std::string> tensor_names() {
    std::vector<std::string> names;
    for (int u = 0; u < model_->units().count(); ++u)
      for (const SegmentSpec& segment : model_->units().spec(u).segments)
        for (const TensorSpec& tensor : segment.tensors) names.push_back(tensor.name);
    return names;
  }

  void zero_gradients() { model_->units().zero_gradients(*stream_); }

  // Gradient of the mean cross-entropy over positions [from, length) of each sequence; returns the loss.
  double cross_entropy(const RaggedBatch& batch, const std::vector<int64_t>& from, const DropoutOptions& dropout = {}) {
    const PredictionRows rows = prediction_rows(batch, from);
    return cross_entropy_part(batch, rows, static_cast<double>(rows.count()), dropout) /
           static_cast<double>(rows.count());
  }

  // The same for a part of a step whose denominator is `tokens`; returns the sum of the losses.
  double cross_entropy_part(const RaggedBatch& batch, const PredictionRows& rows, double tokens,
                            const DropoutOptions& dropout = {}) {
    log_probs_.clear();
    model_->accumulate_token_loss(
        batch, rows,
        [&](Stream& stream, const LmHead::Chunk& chunk) {
          to_device(stream, std::vector<double>(static_cast<size_t>(chunk.log_prob.rows()), -1 / tokens),
                    chunk.d_log_prob);
          const std::vector<double> log_prob = to_host(stream, chunk.log_prob);
          log_probs_.insert(log_probs_.end(), log_prob.begin(), log_prob.end());
        },
        1, false, dropout);
    return -std::accumulate(log_probs_.begin(), log_probs_.end(), 0.0);
  }

  // Of the predicted tokens of the latest loss.
  const std::vector<double>& log_probs() const { return log_probs_; }

 private:
  static ModelInstanceOptions instance(const OptConfig& config, const TestModelOptions& o) {
    return {.prefix = "model",
            .config = config,
            .head = o.head,
            .dtype = o.dtype,
            .capacity = {o.tokens, o.tokens},
            .head_chunk_rows = o.chunk_rows,
            .training = true,
            .recompute = o.recompute,
            .optimizer = o.optimizer};
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  ModelInstanceOptions options_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ModelInstance> model_;
  std::vector<double> log_probs_;
};

inline std::vector<int32_t> token_ids(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

// One of the four models of tests/golden/models (tests/golden/README.md).
struct GoldenModel {
  explicit GoldenModel(const std::string& name)
      : folder(std::string(TERCET_SOURCE_DIR "/tests/golden/models/") + name),
        config(OptConfig::from_json(parse_json(read_file(folder + "/config.json"), folder), folder)),
        golden(parse_json(read_file(folder + "/golden.json"), folder)),
        weights(folder + "/model.safetensors"),
        values(folder + "/golden.safetensors") {}

  // Loads the weights, and the score head when the model has one.
  void load(TestModel& model) const {
    for (const std::string& tensor : model.tensor_names()) {
      const TensorSource& source = tensor == "score.weight" ? static_cast<const TensorSource&>(values) : weights;
      model.set_weight(tensor, source.read_vector<double>(tensor));
    }
  }

  RaggedBatch batch(std::vector<int64_t>& prompt_lengths) const {
    RaggedBatch result;
    const Json& json = golden.at("batch");
    for (const Json& sequence : json.at("sequences").as_array())
      result.append(token_ids(sequence), static_cast<uint64_t>(result.sequences()));
    for (const Json& length : json.at("prompt_lengths").as_array()) prompt_lengths.push_back(length.as_int());
    return result;
  }

  int64_t stride(const std::string& kind) const { return golden.at("strides").at(kind).as_int(); }

  std::string folder;
  OptConfig config;
  Json golden;
  SafetensorsReader weights, values;
};

inline const std::vector<std::string>& golden_model_names() {
  static const std::vector<std::string> names = {"pre_ln", "post_ln", "gelu", "head80"};
  return names;
}

inline double norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Elements 0, stride, 2 stride, ...
inline std::vector<double> strided(const std::vector<double>& values, int64_t stride) {
  std::vector<double> kept;
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(stride)) kept.push_back(values[i]);
  return kept;
}

// |x - ref| / max(|ref|, 1e-3 scale) with Euclidean norms
inline double tensor_error(const std::vector<double>& x, const std::vector<double>& reference, double scale) {
  if (x.size() != reference.size()) return INFINITY;
  std::vector<double> difference(x.size());
  for (size_t i = 0; i < x.size(); ++i) difference[i] = x[i] - reference[i];
  const double error = norm(difference) / std::max(norm(reference), 1e-3 * scale);
  return std::isnan(error) ? INFINITY : error;
}

// max_i |x_i - ref_i| / max(|ref_i|, 1e-3 scale)
inline double largest_error(const std::vector<double>& x, const std::vector<double>& reference, double scale) {
  if (x.size() != reference.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(x[i] - reference[i]) / std::max(std::fabs(reference[i]), 1e-3 * scale);
    largest = std::isnan(error) ? INFINITY : std::max(largest, error);
  }
  return largest;
}

}  // namespace tercet::testing
