#include "model/heads.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/token_log_prob.h"

namespace tercet {
namespace {

Slot slot(const std::string& name, int64_t rows, int64_t columns, DType dtype, Phase first, Phase last) {
  return {name, MemoryClass::workspace, static_cast<size_t>(rows * columns) * dtype_size(dtype), first, last};
}

void upload_ids(Stream& stream, const Tensor& target, std::span<const int32_t> ids) {
  stream.copy_to_device(target.data, ids.data(), ids.size() * sizeof(int32_t));
  stream.synchronize();
}

// x *= factor; undefined tensors and a factor of 1 are left alone.
void multiply(Stream& stream, const Tensor& x, double factor) {
  if (x.defined() && factor != 1) affine(stream, {.x = x, .scale = factor});
}

}  // namespace

PredictionRows prediction_rows(const RaggedBatch& batch, std::span<const int64_t> from) {
  TERCET_REQUIRE(static_cast<int64_t>(from.size()) == batch.sequences(), "{} starts for {} sequences", from.size(),
                 batch.sequences());
  PredictionRows result;
  for (size_t b = 0; b < from.size(); ++b) {
    TERCET_REQUIRE(from[b] >= 1, "position {} of a sequence has nothing before it", from[b]);
    for (int64_t token = batch.offsets[b] + from[b]; token < batch.offsets[b + 1]; ++token) {
      result.rows.push_back(static_cast<int32_t>(token - 1));
      result.targets.push_back(batch.tokens[static_cast<size_t>(token)]);
    }
  }
  return result;
}

std::vector<Slot> LmHead::footprint(const OptConfig& config, const LmHeadOptions& o) {
  const DType statistics = statistics_dtype(o.dtype);
  const auto add = [&](const char* name, int64_t rows, int64_t columns, DType dtype) {
    return slot(o.prefix + "/" + name, rows, columns, dtype, o.first, o.last);
  };
  std::vector<Slot> slots = {add("rows", o.max_rows, 1, DType::i32),
                             add("targets", o.max_rows, 1, DType::i32),
                             add("log_prob", o.max_rows, 1, statistics),
                             add("entropy", o.max_rows, 1, statistics),
                             add("likeliest", o.max_rows, 1, statistics),
                             add("gathered", o.chunk_rows, config.word_embed_proj_dim, o.dtype),
                             add("logits", o.chunk_rows, config.vocab_size, o.dtype),
                             add("log_sum_exp", o.chunk_rows, 1, statistics)};
  if (o.training) {
    slots.push_back(add("d_log_prob", o.chunk_rows, 1, statistics));
    slots.push_back(add("d_entropy", o.chunk_rows, 1, statistics));
    slots.push_back(add("d_gathered", o.chunk_rows, config.word_embed_proj_dim, o.dtype));
  }
  return slots;
}

LmHead::LmHead(const OptConfig& config, const LmHeadOptions& options, Arena& arena)
    : config_(config), options_(options) {
  const DType statistics = statistics_dtype(options.dtype);
  const auto take = [&](const char* name, DType dtype, std::initializer_list<int64_t> shape) {
    return arena.take(options.prefix + "/" + name, dtype, shape);
  };
  device_rows_ = take("rows", DType::i32, {options.max_rows});
  targets_ = take("targets", DType::i32, {options.max_rows});
  all_log_prob_ = take("log_prob", statistics, {options.max_rows});
  all_entropy_ = take("entropy", statistics, {options.max_rows});
  all_likeliest_ = take("likeliest", statistics, {options.max_rows});
  gathered_ = take("gathered", options.dtype, {options.chunk_rows, config.word_embed_proj_dim});
  logits_ = take("logits", options.dtype, {options.chunk_rows, config.vocab_size});
  log_sum_exp_ = take("log_sum_exp", statistics, {options.chunk_rows});
  if (!options.training) return;
  d_log_prob_ = take("d_log_prob", statistics, {options.chunk_rows});
  d_entropy_ = take("d_entropy", statistics, {options.chunk_rows});
  d_gathered_ = take("d_gathered", options.dtype, {options.chunk_rows, config.word_embed_proj_dim});
}

Tensor LmHead::log_prob() const { return all_log_prob_.row_range(0, rows_); }
Tensor LmHead::entropy() const { return all_entropy_.row_range(0, rows_); }
Tensor LmHead::likeliest() const { return all_likeliest_.row_range(0, rows_); }

void LmHead::upload(Stream& stream, const PredictionRows& rows) {
  TERCET_REQUIRE(rows.count() <= options_.max_rows, "{}: {} predictions exceed the planned {}", options_.prefix,
                 rows.count(), options_.max_rows);
  rows_ = rows.count();
  upload_ids(stream, device_rows_, rows.rows);
  upload_ids(stream, targets_, rows.targets);
}

void LmHead::forward_chunk(Stream& stream, const Tensor& embedding, const Tensor& hidden, int64_t first, int64_t count,
                           double temperature) {
  const Tensor gathered = gathered_.row_range(0, count);
  const Tensor logits = logits_.row_range(0, count);
  gather_rows(stream, {.x = hidden, .rows = device_rows_.row_range(first, count), .out = gathered});
  linear_forward(stream, {.x = gathered, .weight = embedding, .out = logits});
  token_log_prob_forward(stream, {.logits = logits,
                                  .targets = targets_.row_range(first, count),
                                  .log_prob = all_log_prob_.row_range(first, count),
                                  .log_sum_exp = log_sum_exp_.row_range(0, count),
                                  .entropy = all_entropy_.row_range(first, count),
                                  .likeliest = all_likeliest_.row_range(first, count),
                                  .temperature = temperature});
}

void LmHead::log_probs(Stream& stream, OptModel& model, const Tensor& hidden, const PredictionRows& rows,
                       double temperature) {
  upload(stream, rows);
  const UnitLease lease(model.units(), model.embedding_unit());
  const Tensor embedding = lease.weight(model.token_embedding());
  for (int64_t first = 0; first < rows_; first += options_.chunk_rows)
    forward_chunk(stream, embedding, hidden, first, std::min(options_.chunk_rows, rows_ - first), temperature);
}

void LmHead::loss_and_backward(Stream& stream, OptModel& model, const Tensor& hidden, const PredictionRows& rows,
                               const Loss& loss, const Tensor& d_hidden, const LossGradientOptions& options) {
  TERCET_REQUIRE(options_.training, "{}: a head for inference has no backward", options_.prefix);
  upload(stream, rows);
  fill_zero(stream, d_hidden);
  const UnitLease lease(model.units(), model.embedding_unit());
  const Tensor embedding = lease.weight(model.token_embedding());
  for (int64_t first = 0; first < rows_; first += options_.chunk_rows) {
    const int64_t count = std::min(options_.chunk_rows, rows_ - first);
    forward_chunk(stream, embedding, hidden, first, count, options.temperature);
    const Chunk chunk{.first = first,
                      .log_prob = all_log_prob_.row_range(first, count),
                      .entropy = all_entropy_.row_range(first, count),
                      .d_log_prob = d_log_prob_.row_range(0, count),
                      .d_entropy = options.entropy_gradient ? d_entropy_.row_range(0, count) : Tensor()};
    loss(stream, chunk);
    multiply(stream, chunk.d_log_prob, options.loss_scale);
    multiply(stream, chunk.d_entropy, options.loss_scale);
    const Tensor logits = logits_.row_range(0, count);
    token_log_prob_backward(stream, {.logits = logits,
                                     .targets = targets_.row_range(first, count),
                                     .log_sum_exp = log_sum_exp_.row_range(0, count),
                                     .entropy = options.entropy_gradient ? chunk.entropy : Tensor(),
                                     .d_log_prob = chunk.d_log_prob,
                                     .d_entropy = chunk.d_entropy,
                                     .temperature = options.temperature});
    const Tensor d_gathered = d_gathered_.row_range(0, count);
    linear_backward(stream, {.d_out = logits,
                             .x = gathered_.row_range(0, count),
                             .weight = embedding,
                             .d_x = d_gathered,
                             .d_weight = lease.gradient(model.token_embedding())});
    scatter_add_rows(stream, {.x = d_gathered, .rows = device_rows_.row_range(first, count), .out = d_hidden});
  }
}

void LmHead::upload_rows(Stream& stream, std::span<const int32_t> rows) {
  rows_ = static_cast<int64_t>(rows.size());
  TERCET_REQUIRE(rows_ <= options_.chunk_rows && rows_ <= options_.max_rows,
                 "{}: logits of {} rows exceed the planned {}", options_.prefix, rows_, options_.chunk_rows);
  upload_ids(stream, device_rows_, rows);
}

Tensor LmHead::logits(Stream& stream, OptModel& model, const Tensor& hidden) {
  const UnitLease lease(model.units(), model.embedding_unit());
  const Tensor gathered = gathered_.row_range(0, rows_);
  gather_rows(stream, {.x = hidden, .rows = device_rows_.row_range(0, rows_), .out = gathered});
  const Tensor logits = logits_.row_range(0, rows_);
  linear_forward(stream, {.x = gathered, .weight = lease.weight(model.token_embedding()), .out = logits});
  return logits;
}

std::vector<Slot> ScalarHead::footprint(const OptConfig& config, const ScalarHeadOptions& o) {
  const auto add = [&](const char* name, int64_t columns, DType dtype) {
    return slot(o.prefix + "/" + name, o.max_rows, columns, dtype, o.first, o.last);
  };
  const DType statistics = statistics_dtype(o.dtype);
  std::vector<Slot> slots = {add("rows", 1, DType::i32), add("gathered", config.word_embed_proj_dim, o.dtype),
                             add("scores", 1, statistics)};
  if (!o.training) return slots;
  slots.push_back(add("d_gathered", config.word_embed_proj_dim, o.dtype));
  slots.push_back(add("d_scores", 1, statistics));
  if (statistics != o.dtype) slots.push_back(add("rounded_d_scores", 1, o.dtype));
  return slots;
}

ScalarHead::ScalarHead(const OptConfig& config, const ScalarHeadOptions& options, Arena& arena) : options_(options) {
  const auto take = [&](const char* name, DType dtype, std::initializer_list<int64_t> shape) {
    return arena.take(options.prefix + "/" + name, dtype, shape);
  };
  device_rows_ = take("rows", DType::i32, {options.max_rows});
  gathered_ = take("gathered", options.dtype, {options.max_rows, config.word_embed_proj_dim});
  const DType statistics = statistics_dtype(options.dtype);
  scores_ = take("scores", statistics, {options.max_rows, 1});
  if (!options.training) return;
  d_gathered_ = take("d_gathered", options.dtype, {options.max_rows, config.word_embed_proj_dim});
  d_scores_ = take("d_scores", statistics, {options.max_rows, 1});
  rounded_d_scores_ =
      statistics == options.dtype ? d_scores_ : take("rounded_d_scores", options.dtype, {options.max_rows, 1});
}

Tensor ScalarHead::forward(Stream& stream, OptModel& model, const Tensor& hidden, std::span<const int32_t> rows) {
  rows_ = static_cast<int64_t>(rows.size());
  TERCET_REQUIRE(rows_ <= options_.max_rows, "{}: {} scores exceed the planned {}", options_.prefix, rows_,
                 options_.max_rows);
  upload_ids(stream, device_rows_, rows);
  const UnitLease lease(model.units(), model.score_unit());
  gather_rows(stream, {.x = hidden, .rows = device_rows_.row_range(0, rows_), .out = gathered_.row_range(0, rows_)});
  linear_forward(stream, {.x = gathered_.row_range(0, rows_),
                          .weight = lease.weight(model.score_weight()),
                          .out = scores_.row_range(0, rows_)});
  return scores_.row_range(0, rows_).reshaped({rows_});
}

Tensor ScalarHead::d_scores() const { return d_scores_.row_range(0, rows_).reshaped({rows_}); }

void ScalarHead::backward(Stream& stream, OptModel& model, const Tensor& d_hidden, double loss_scale) {
  TERCET_REQUIRE(options_.training, "{}: a head for inference has no backward", options_.prefix);
  const UnitLease lease(model.units(), model.score_unit());
  fill_zero(stream, d_hidden);
  const Tensor d_scores = rounded_d_scores_.row_range(0, rows_);
  multiply(stream, d_scores_.row_range(0, rows_), loss_scale);
  if (d_scores.dtype != d_scores_.dtype) cast(stream, {.source = d_scores_.row_range(0, rows_), .target = d_scores});
  linear_backward(stream, {.d_out = d_scores,
                           .x = gathered_.row_range(0, rows_),
                           .weight = lease.weight(model.score_weight()),
                           .d_x = d_gathered_.row_range(0, rows_),
                           .d_weight = lease.gradient(model.score_weight())});
  scatter_add_rows(stream,
                   {.x = d_gathered_.row_range(0, rows_), .rows = device_rows_.row_range(0, rows_), .out = d_hidden});
}

}  // namespace tercet
