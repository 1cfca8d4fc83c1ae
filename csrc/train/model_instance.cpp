#include "train/model_instance.h"

#include "base/checked.h"
#include "device/profile_scope.h"
#include "kernels/elementwise.h"
#include "model/flops.h"
#include "store/hdf5_file.h"

namespace tercet {
namespace {

UnitOptions unit_options(const ModelInstanceOptions& o) {
  return {.prefix = o.prefix,
          .dtype = o.dtype,
          .trainable = o.training,
          .gradient_first = o.train_phase,
          .gradient_last = o.gradient_last};
}

AdamWOptions optimizer_options(const ModelInstanceOptions& o) {
  AdamWOptions options = o.optimizer;
  options.prefix = o.prefix + "/adamw";
  return options;
}

// One way to run the model: training or inference.
struct PassOptions {
  ActivationOptions activations;
  LmHeadOptions lm_head;
  ScalarHeadOptions scalar_head;
  std::string batch;
};

PassOptions pass_options(const ModelInstanceOptions& o, bool training) {
  const std::string prefix = o.prefix + (training ? "/train" : "/infer");
  const Phase first = training ? o.train_phase : o.inference_first;
  const Phase last = training ? o.train_phase : o.inference_last;
  return {{.prefix = prefix,
           .dtype = o.dtype,
           .capacity = o.capacity,
           .training = training,
           .recompute = o.recompute,
           .first = first,
           .last = last},
          {.prefix = prefix + "/head",
           .dtype = o.dtype,
           .max_rows = o.capacity.tokens,
           .chunk_rows = std::min(o.head_chunk_rows, o.capacity.tokens),
           .training = training,
           .first = first,
           .last = last},
          {.prefix = prefix + "/head",
           .dtype = o.dtype,
           .max_rows = o.capacity.tokens,
           .training = training,
           .first = first,
           .last = last},
          prefix + "/batch"};
}

std::vector<Slot> pass_footprint(const ModelInstanceOptions& o, bool training) {
  const PassOptions pass = pass_options(o, training);
  std::vector<Slot> slots = Activations::footprint(o.config, pass.activations);
  const std::vector<Slot> head = o.head == Head::scalar ? ScalarHead::footprint(o.config, pass.scalar_head)
                                                        : LmHead::footprint(o.config, pass.lm_head);
  const std::vector<Slot> batch =
      DeviceBatch::footprint(pass.batch, o.capacity, pass.activations.first, pass.activations.last);
  slots.insert(slots.end(), head.begin(), head.end());
  slots.insert(slots.end(), batch.begin(), batch.end());
  return slots;
}

struct Pass {
  Pass(const ModelInstanceOptions& o, const PassOptions& pass, Arena& arena)
      : activations(o.config, pass.activations, arena), batch(pass.batch, o.capacity, arena) {
    if (o.head == Head::scalar)
      scalar_head.emplace(o.config, pass.scalar_head, arena);
    else
      lm_head.emplace(o.config, pass.lm_head, arena);
  }

  Activations activations;
  DeviceBatch batch;
  std::optional<LmHead> lm_head;
  std::optional<ScalarHead> scalar_head;
};

void save_tensor(Stream& stream, Hdf5Writer& file, const std::string& name, const std::vector<int64_t>& shape,
                 const Tensor& tensor) {
  std::vector<std::byte> host(static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
  stream.copy_to_host(host.data(), tensor.data, host.size());
  stream.synchronize();
  file.write({name, tensor.dtype, shape}, host.data());
}

void load_tensor(Stream& stream, const Hdf5Reader& file, const std::string& name, const Tensor& tensor) {
  std::vector<std::byte> host(static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
  file.read(name, tensor.dtype, 0, tensor.elements(), host.data());
  stream.copy_to_device(tensor.data, host.data(), host.size());
  stream.synchronize();
}

ModelInstance::TokenValues token_values(Stream& stream, const LmHead& head) {
  return {to_host(stream, head.log_prob()), to_host(stream, head.entropy()), to_host(stream, head.likeliest())};
}

}  // namespace

struct ModelInstance::Parts {
  ModelInstanceOptions options;
  Stream& stream;
  UnitSet units;
  OptModel model;
  std::optional<AdamW> optimizer;
  std::optional<Pass> training, inference;
  double flops = 0;

  Parts(const ModelInstanceOptions& o, Arena& arena, Stream& work, Communicator& communicator)
      : options(o),
        stream(work),
        units(opt_units(o.config, o.head), unit_options(o), arena, work, communicator),
        model(o.config, o.head, units) {
    if (o.training) {
      training.emplace(o, pass_options(o, true), arena);
      optimizer.emplace(units, optimizer_options(o), arena);
    }
    if (o.inference) inference.emplace(o, pass_options(o, false), arena);
  }

  Pass& pass(bool train) {
    auto& chosen = train ? training : inference;
    TERCET_REQUIRE(chosen.has_value(), "{} was not planned for {}", options.prefix, train ? "training" : "inference");
    return *chosen;
  }

  // `head_rows` go through the head afterwards, and the pass backwards when it is training's.
  Tensor forward(Pass& pass, const RaggedBatch& batch, size_t head_rows, const DropoutOptions& dropout = {}) {
    const ProfileScope scope(stream, "forward");
    std::vector<int64_t> lengths;
    for (size_t b = 0; b + 1 < batch.offsets.size(); ++b) lengths.push_back(batch.offsets[b + 1] - batch.offsets[b]);
    const bool backward = training && &pass == &*training;
    flops += (backward ? 3 : 1) * forward_flops(options.config, options.head, lengths, static_cast<int64_t>(head_rows));
    pass.batch.upload(stream, batch);
    model.forward(stream, pass.batch, pass.activations, dropout);
    return pass.activations.output();
  }

  // Visits (kind, tensor spec, view) of everything that a checkpoint holds of this model.
  void for_each_saved(const std::function<void(const char*, const TensorSpec&, const Tensor&)>& visit) {
    for (int u = 0; u < units.count(); ++u) {
      const auto& segments = units.spec(u).segments;
      for (size_t s = 0; s < segments.size(); ++s) {
        const UnitSet::Buffers& buffers = units.buffers(u, static_cast<int>(s));
        for (const TensorSpec& tensor : segments[s].tensors) {
          visit("weights", tensor, buffers.exact().row_range(tensor.offset, tensor.elements()));
          if (!buffers.m.defined()) continue;
          visit("m", tensor, buffers.m.row_range(tensor.offset, tensor.elements()));
          visit("v", tensor, buffers.v.row_range(tensor.offset, tensor.elements()));
        }
      }
    }
  }
};

std::vector<Slot> ModelInstance::footprint(const ModelInstanceOptions& o) {
  std::vector<Slot> slots = UnitSet::footprint(opt_units(o.config, o.head), unit_options(o));
  const auto append = [&](const std::vector<Slot>& more) { slots.insert(slots.end(), more.begin(), more.end()); };
  if (o.training) {
    append(pass_footprint(o, true));
    append(AdamW::footprint(optimizer_options(o)));
  }
  if (o.inference) append(pass_footprint(o, false));
  return slots;
}

ModelInstance::ModelInstance(const ModelInstanceOptions& options, Arena& arena, Stream& stream,
                             Communicator& communicator)
    : parts_(std::make_unique<Parts>(options, arena, stream, communicator)) {}

ModelInstance::~ModelInstance() = default;

const ModelInstanceOptions& ModelInstance::options() const { return parts_->options; }
UnitSet& ModelInstance::units() { return parts_->units; }
double ModelInstance::flops() const { return parts_->flops; }
OptModel& ModelInstance::model() { return parts_->model; }

AdamW& ModelInstance::optimizer() {
  TERCET_REQUIRE(parts_->optimizer.has_value(), "{} is not trained", parts_->options.prefix);
  return *parts_->optimizer;
}

ModelInstance::TokenValues ModelInstance::log_probs(const RaggedBatch& batch, const PredictionRows& rows,
                                                    double temperature) {
  Pass& pass = parts_->pass(false);
  const Tensor hidden = parts_->forward(pass, batch, rows.rows.size());
  pass.lm_head->log_probs(parts_->stream, parts_->model, hidden, rows, temperature);
  return token_values(parts_->stream, *pass.lm_head);
}

std::vector<double> ModelInstance::hidden_states(const RaggedBatch& batch) {
  return to_host(parts_->stream, parts_->forward(parts_->pass(false), batch, 0));
}

std::vector<double> ModelInstance::scores(const RaggedBatch& batch, std::span<const int32_t> rows) {
  Pass& pass = parts_->pass(false);
  const Tensor hidden = parts_->forward(pass, batch, rows.size());
  return to_host(parts_->stream, pass.scalar_head->forward(parts_->stream, parts_->model, hidden, rows));
}

void ModelInstance::accumulate_token_loss(const RaggedBatch& batch, const PredictionRows& rows,
                                          const LmHead::Loss& loss, double temperature, bool entropy_gradient,
                                          const DropoutOptions& dropout) {
  const LossGradientOptions options{temperature, entropy_gradient, optimizer().loss_scale().value()};
  Pass& pass = parts_->pass(true);
  const Tensor hidden = parts_->forward(pass, batch, rows.rows.size(), dropout);
  const ProfileScope scope(parts_->stream, "loss and backward");
  pass.lm_head->loss_and_backward(parts_->stream, parts_->model, hidden, rows, loss, pass.activations.d_output(),
                                  options);
  parts_->model.backward(parts_->stream, pass.batch, pass.activations, dropout);
}

ModelInstance::TokenValues ModelInstance::accumulate_cross_entropy(const RaggedBatch& batch, const PredictionRows& rows,
                                                                   double scale, const DropoutOptions& dropout) {
  const LmHead::Loss loss = [scale](Stream& stream, const LmHead::Chunk& chunk) {
    const Tensor& d_log_prob = chunk.d_log_prob;
    fill_zero(stream, d_log_prob);
    affine(stream, {.x = d_log_prob, .shift = -scale});
  };
  accumulate_token_loss(batch, rows, loss, 1, false, dropout);
  return token_values(parts_->stream, *parts_->pass(true).lm_head);
}

void ModelInstance::accumulate_score_loss(const RaggedBatch& batch, std::span<const int32_t> rows,
                                          const ScoreLoss& loss, const DropoutOptions& dropout) {
  Pass& pass = parts_->pass(true);
  const Tensor hidden = parts_->forward(pass, batch, rows.size(), dropout);
  const ProfileScope scope(parts_->stream, "loss and backward");
  const Tensor scores = pass.scalar_head->forward(parts_->stream, parts_->model, hidden, rows);
  loss(parts_->stream, scores, pass.scalar_head->d_scores());
  pass.scalar_head->backward(parts_->stream, parts_->model, pass.activations.d_output(),
                             optimizer().loss_scale().value());
  parts_->model.backward(parts_->stream, pass.batch, pass.activations, dropout);
}

uint64_t ModelInstance::checkpoint_bytes() {
  uint64_t bytes = 0;
  parts_->for_each_saved([&](const char*, const TensorSpec&, const Tensor& tensor) {
    bytes += static_cast<uint64_t>(tensor.elements()) * dtype_size(tensor.dtype);
  });
  return bytes;
}

void ModelInstance::save(Hdf5Writer& file, Json& state) {
  const std::string& prefix = parts_->options.prefix;
  parts_->for_each_saved([&](const char* kind, const TensorSpec& spec, const Tensor& tensor) {
    save_tensor(parts_->stream, file, fmt::format("{}/{}/{}", prefix, kind, spec.name), spec.shape, tensor);
  });
  if (!parts_->optimizer) return;
  state.set(prefix + "/optimizer_steps", parts_->optimizer->steps());
  state.set(prefix + "/loss_scale", parts_->optimizer->loss_scale().state());
}

void ModelInstance::load(const Hdf5Reader& file, const Json& state) {
  const std::string& prefix = parts_->options.prefix;
  parts_->for_each_saved([&](const char* kind, const TensorSpec& spec, const Tensor& tensor) {
    load_tensor(parts_->stream, file, fmt::format("{}/{}/{}", prefix, kind, spec.name), tensor);
  });
  parts_->units.round_weights(parts_->stream);
  if (!parts_->optimizer) return;
  parts_->optimizer->set_steps(state.at(prefix + "/optimizer_steps").as_int());
  parts_->optimizer->loss_scale().set_state(state.at(prefix + "/loss_scale"));
}

std::vector<double> to_host(Stream& stream, const Tensor& tensor) {
  TERCET_REQUIRE(tensor.contiguous(), "{} is not contiguous", tensor.describe());
  std::vector<std::byte> raw(static_cast<size_t>(tensor.elements()) * dtype_size(tensor.dtype));
  stream.copy_to_host(raw.data(), tensor.data, raw.size());
  stream.synchronize();
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  convert(tensor.dtype, raw.data(), DType::f64, values.data(), tensor.elements());
  return values;
}

void to_device(Stream& stream, std::span<const double> values, const Tensor& tensor) {
  TERCET_REQUIRE(tensor.contiguous() && tensor.elements() == static_cast<int64_t>(values.size()), "{} values for {}",
                 values.size(), tensor.describe());
  std::vector<std::byte> raw(values.size() * dtype_size(tensor.dtype));
  convert(DType::f64, values.data(), tensor.dtype, raw.data(), tensor.elements());
  stream.copy_to_device(tensor.data, raw.data(), raw.size());
  stream.synchronize();
}

}  // namespace tercet
