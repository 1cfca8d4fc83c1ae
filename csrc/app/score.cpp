#include <algorithm>

#include "app/inference.h"
#include "base/error.h"
#include "base/log.h"

namespace tercet {
namespace {

void check_ids(const Sequence& sequence, const std::string& where, const OptConfig& config) {
  for (const int32_t id : sequence.ids)
    if (id < 0 || id >= config.vocab_size)
      fail_input(fmt::format("the id {} is not one of the model's {}", id, config.vocab_size), where,
                 "use ids of the model's tokenizer");
}

// All sequences of the items in their order, chosen before rejected.
std::vector<const Sequence*> sequences_of(const std::vector<ScoreItem>& items) {
  std::vector<const Sequence*> sequences;
  for (const ScoreItem& item : items) {
    sequences.push_back(&item.sequence);
    if (item.rejected) sequences.push_back(&*item.rejected);
  }
  return sequences;
}

bool ends(const Sequence& sequence) { return !sequence.ids.empty() && sequence.ids.back() == Tokenizer::end_id; }

// log p of each token given those before it, for all sequences, [length - 1] each.
std::vector<std::vector<double>> log_probs(ModelInstance& model, const std::vector<const Sequence*>& sequences,
                                           const EvaluationLimits& limits) {
  std::vector<int64_t> counts;
  for (const Sequence* sequence : sequences) counts.push_back(sequence->token_count());
  std::vector<std::vector<double>> result;
  for (const auto& [begin, end] : cut_micro_batches(counts, limits.tokens, limits.sequences)) {
    RaggedBatch batch;
    for (int64_t i = begin; i < end; ++i) {
      const Sequence& sequence = *sequences[static_cast<size_t>(i)];
      batch.append(sequence.ids, sequence.sample);
    }
    const std::vector<int64_t> from(static_cast<size_t>(end - begin), 1);
    const std::vector<double> values = model.log_probs(batch, prediction_rows(batch, from)).log_probs;
    auto next = values.begin();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t count = std::max<int64_t>(counts[static_cast<size_t>(i)] - 1, 0);
      result.emplace_back(next, next + count);
      next += count;
    }
  }
  return result;
}

Json reals(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push_back(value);
  return json;
}

Json log_prob_json(const Sequence& sequence, const std::vector<double>& values) {
  Json ids = Json::array();
  for (const int32_t id : sequence.ids) ids.push_back(int64_t{id});
  Json json = Json::object();
  json.set("ids", std::move(ids)).set("logprobs", reals(values));
  if (!ends(sequence)) json.set("terminated", false);
  return json;
}

void print_log_probs(const std::vector<ScoreItem>& items, const std::vector<std::vector<double>>& values) {
  auto next = values.begin();
  for (const ScoreItem& item : items) {
    Json json = log_prob_json(item.sequence, *next++);
    if (item.rejected) {
      Json pair = Json::object();
      pair.set("chosen", std::move(json)).set("rejected", log_prob_json(*item.rejected, *next++));
      json = std::move(pair);
    }
    fmt::print("{}\n", json.dump());
  }
}

// (score - mean) / sd, or null when the model does not know them.
Json normalized(const ModelInfo& info, double score) {
  return info.affine ? Json((score - info.affine->mean) / info.affine->sd) : Json();
}

Json pair_json(const ModelInfo& info, const ScoreItem& item, double chosen, double rejected) {
  Json json = Json::object();
  json.set("chosen", chosen).set("rejected", rejected).set("margin", chosen - rejected);
  json.set("chosen_normalized", normalized(info, chosen)).set("rejected_normalized", normalized(info, rejected));
  json.set("margin_normalized", info.affine ? Json((chosen - rejected) / info.affine->sd) : Json());
  if (!ends(item.sequence)) json.set("chosen_terminated", false);
  if (!ends(*item.rejected)) json.set("rejected_terminated", false);
  return json;
}

void print_rewards(const ModelInfo& info, const std::vector<ScoreItem>& items, const std::vector<double>& scores) {
  auto next = scores.begin();
  for (const ScoreItem& item : items) {
    const double score = *next++;
    Json json = Json::object();
    if (item.rejected) {
      json = pair_json(info, item, score, *next++);
    } else {
      json.set("reward", score).set("reward_normalized", normalized(info, score));
      if (!ends(item.sequence)) json.set("terminated", false);
    }
    fmt::print("{}\n", json.dump());
  }
}

}  // namespace

int run_score(const ScoreSettings& settings) {
  RunDevice run = open_run_device(settings);
  const ModelInfo info = read_model_info(settings.model);
  DataOptions options = inference_data_options(settings, info, settings.data);
  options.max_length = longest_length(settings.max_length, info.config);
  const ScoreData data = load_score(options, info.tokenizer(settings.model));
  log::info("data: {} records, {} tokens; {}", data.items.size(), data.tokens, data.drops.text());

  const std::vector<const Sequence*> sequences = sequences_of(data.items);
  int64_t longest = 0;
  for (const ScoreItem& item : data.items) {
    check_ids(item.sequence, item.where, info.config);
    if (item.rejected) check_ids(*item.rejected, item.where, info.config);
  }
  for (const Sequence* sequence : sequences) longest = std::max(longest, sequence->token_count());
  const EvaluationLimits limits = forward_limits(settings.micro_batch_tokens, longest);
  ScoringModel model(run, settings.model, info, limits);
  if (info.head == Head::scalar)
    print_rewards(info, data.items, score_sequences(model.instance(), sequences, limits));
  else
    print_log_probs(data.items, log_probs(model.instance(), sequences, limits));
  return 0;
}

}  // namespace tercet
