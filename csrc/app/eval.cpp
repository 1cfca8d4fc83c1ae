#include <algorithm>

#include "app/inference.h"
#include "base/error.h"
#include "base/log.h"
#include "rollout/generator.h"
#include "train/reward_rule.h"
#include "train/signals.h"

namespace tercet {
namespace {

Json interval_json(const Interval& interval) { return Json::Array{Json(interval.low), Json(interval.high)}; }

DataOptions data_options(const EvalSettings& settings, const ModelInfo& info) {
  DataOptions options = inference_data_options(settings, info, settings.data);
  options.max_length = longest_length(settings.max_length, info.config);
  options.turns = settings.turns;
  options.truncate = settings.truncate;
  return options;
}

Json language_model_figures(const EvalSettings& settings, RunDevice& run, const ModelInfo& info) {
  const SftData data = load_sft(data_options(settings, info), info.tokenizer(settings.model));
  log::info("data: {} sequences, {} tokens; {}", data.sequences.size(), data.tokens, data.drops.text());
  int64_t longest = 0;
  for (const Sequence& sequence : data.sequences) longest = std::max(longest, sequence.token_count());
  const EvaluationLimits limits = forward_limits(settings.micro_batch_tokens, longest);
  ScoringModel model(run, settings.model, info, limits);
  const LanguageModelFigures figures =
      evaluate_language_model(model.instance(), data.sequences, settings.loss_on == "all", limits);
  Json json = Json::object();
  json.set("loss", figures.loss).set("perplexity", figures.perplexity()).set("tokens", figures.tokens);
  json.set("token_accuracy", figures.token_accuracy)
      .set("entropy", figures.entropy)
      .set("sequences", static_cast<int64_t>(data.sequences.size()));
  json.set("records", data.drops.json());
  return json;
}

Json reward_model_figures(const EvalSettings& settings, RunDevice& run, const ModelInfo& info) {
  if (settings.loss_on != "response" || settings.turns != "last")
    fail_input("a reward model is evaluated on pairs", "--loss-on, --turns", "leave these flags out");
  const PairData data = load_pairs(data_options(settings, info), info.tokenizer(settings.model));
  log::info("data: {} pairs, {} tokens; {}", data.pairs.size(), data.tokens, data.drops.text());
  int64_t longest = 0;
  for (const PreferencePair& pair : data.pairs)
    longest = std::max({longest, pair.chosen.token_count(), pair.rejected.token_count()});
  const EvaluationLimits limits = forward_limits(settings.micro_batch_tokens, longest);
  ScoringModel model(run, settings.model, info, limits);
  const RewardFigures figures = reward_figures(score_pairs(model.instance(), data.pairs, limits), data.pairs);
  Json json = Json::object();
  json.set("accuracy", figures.accuracy()).set("accuracy_interval", interval_json(figures.accuracy_interval()));
  json.set("ties", figures.ties).set("margin", figures.margin_mean).set("pairs", figures.pairs);
  json.set("shorter_wins", figures.shorter_wins).set("loss", figures.loss);
  json.set("chosen_mean", figures.chosen_mean).set("rejected_mean", figures.rejected_mean);
  json.set("score_sd", figures.score_sd).set("records", data.drops.json());
  return json;
}

// Two language models that answer the same prompts, and a reward model or a rule that scores the answers.
class Comparison {
 public:
  Comparison(const EvalSettings& settings, RunDevice& run, const ModelInfo& info)
      : settings_(settings), run_(run), rule_(find_reward_rule(settings.reward_rule)) {
    const ModelInfo baseline = read_model_info(settings.baseline);
    if (baseline.head != Head::language_model)
      fail_input("a reward model cannot answer prompts", "--baseline " + settings.baseline, "give a language model");
    require_same_tokenizer(info, settings.model, baseline, settings.baseline);
    std::optional<ModelInfo> reward;
    if (rule_ == nullptr) reward = read_reward_model(info);
    load_prompts_of(info);
    allocate(info, baseline, reward);
    reward_ = rule_ == nullptr ? model_reward(*reward_model_, {}) : rule_->source(info.tokenizer(settings.model));
  }

  Json figures() {
    const Side model = answer(*model_generator_), baseline = answer(*baseline_generator_);
    double won = 0;
    int64_t ties = 0;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      won += model.scores[i] > baseline.scores[i] ? 1 : model.scores[i] == baseline.scores[i] ? 0.5 : 0;
      ties += model.scores[i] == baseline.scores[i] ? 1 : 0;
    }
    const auto count = static_cast<double>(prompts_.size());
    Json json = Json::object();
    json.set("win_rate", won / count).set("win_rate_interval", interval_json(wilson_interval(won, count)));
    json.set("ties", ties).set("prompts", static_cast<int64_t>(prompts_.size()));
    json.set("model", model.json()).set("baseline", baseline.json()).set("records", drops_.json());
    return json;
  }

 private:
  // The answers of one model.
  struct Side {
    std::vector<double> scores;
    int64_t tokens = 0;
    int64_t ended = 0;

    Json json() const {
      const auto count = static_cast<double>(scores.size());
      double sum = 0;
      for (const double score : scores) sum += score;
      Json json = Json::object();
      json.set("score", sum / count).set("length", static_cast<double>(tokens) / count);
      return json.set("eos_rate", static_cast<double>(ended) / count);
    }
  };

  ModelInfo read_reward_model(const ModelInfo& model) const {
    ModelInfo info = read_model_info(settings_.reward_model);
    if (info.head != Head::scalar)
      fail_input("a language model cannot score", "--reward-model " + settings_.reward_model, "give a reward model");
    require_same_tokenizer(model, settings_.model, info, settings_.reward_model);
    return info;
  }

  void load_prompts_of(const ModelInfo& info) {
    DataOptions options = inference_data_options(settings_, info, settings_.data);
    options.max_prompt_tokens = settings_.max_prompt_tokens;
    PromptData data =
        load_prompts(options, info.tokenizer(settings_.model), rule_ == nullptr ? AnswerCheck{} : rule_->drop_class);
    log::info("data: {} prompts, {} tokens; {}", data.prompts.size(), data.tokens, data.drops.text());
    prompts_ = std::move(data.prompts);
    drops_ = data.drops;
    for (const Prompt& prompt : prompts_) longest_ = std::max(longest_, prompt.token_count());
  }

  GeneratorOptions generator_options(const std::string& prefix) const {
    return {.prefix = prefix,
            .dtype = run_.dtype,
            .slots = std::min<int64_t>(64, static_cast<int64_t>(prompts_.size())),
            .max_prompt_tokens = longest_,
            .max_new_tokens = settings_.max_new_tokens,
            .prefill_tokens = std::max<int64_t>(1024, longest_)};
  }

  void allocate(const ModelInfo& model, const ModelInfo& baseline, const std::optional<ModelInfo>& reward) {
    limits_ = forward_limits(settings_.micro_batch_tokens, longest_ + settings_.max_new_tokens);
    const auto instance = [&](const char* prefix, const ModelInfo& info) {
      return ModelInstanceOptions{.prefix = prefix,
                                  .config = info.config,
                                  .head = info.head,
                                  .dtype = run_.dtype,
                                  .capacity = {limits_.tokens, limits_.sequences},
                                  .inference = info.head == Head::scalar};
    };
    const auto a = instance("model", model), b = instance("baseline", baseline);
    std::vector<std::vector<Slot>> footprints = {
        ModelInstance::footprint(a), ModelInstance::footprint(b),
        Generator::footprint(a.config, generator_options("model/generator")),
        Generator::footprint(b.config, generator_options("baseline/generator"))};
    if (reward) footprints.push_back(ModelInstance::footprint(instance("reward", *reward)));
    arena_ = allocate_plan(*run_.device, footprints);
    model_.emplace(a, *arena_, *run_.stream, *run_.communicator);
    baseline_.emplace(b, *arena_, *run_.stream, *run_.communicator);
    if (reward) reward_model_.emplace(instance("reward", *reward), *arena_, *run_.stream, *run_.communicator);
    model_generator_.emplace(model_->model(), generator_options("model/generator"), *arena_);
    baseline_generator_.emplace(baseline_->model(), generator_options("baseline/generator"), *arena_);
    arena_->require_all_taken();
    read_weights(*run_.stream, settings_.model, model_->units());
    read_weights(*run_.stream, settings_.baseline, baseline_->units());
    if (reward) read_weights(*run_.stream, settings_.reward_model, reward_model_->units());
  }

  Side answer(Generator& generator) {
    throw_if_stop_requested();
    std::vector<GenerationRequest> requests;
    for (const Prompt& prompt : prompts_) requests.push_back({prompt.ids, prompt.sample, settings_.max_new_tokens});
    const SamplingOptions sampling{.temperature = settings_.temperature, .seed = settings_.seed};
    Side side;
    const std::vector<Generation> generations = generator.generate(*run_.stream, requests, sampling);
    std::vector<ScoredResponse> responses;
    for (size_t i = 0; i < generations.size(); ++i) {
      const bool ended = generations[i].finish == Finish::end;
      side.tokens += static_cast<int64_t>(generations[i].response.size());
      side.ended += ended ? 1 : 0;
      responses.push_back({prompts_[i].ids, generations[i].response, ended, prompts_[i].answer});
    }
    side.scores = reward_->score(responses);
    return side;
  }

  const EvalSettings& settings_;
  RunDevice& run_;
  const RewardRule* rule_;  // nullptr: a reward model
  std::vector<Prompt> prompts_;
  DropCounts drops_;
  int64_t longest_ = 0;
  EvaluationLimits limits_;
  std::unique_ptr<Arena> arena_;
  std::optional<ModelInstance> model_, baseline_, reward_model_;
  std::unique_ptr<RewardSource> reward_;
  std::optional<Generator> model_generator_, baseline_generator_;
};

}  // namespace

Json evaluate(const EvalSettings& settings) {
  RunDevice run = open_run_device(settings);
  const ModelInfo info = read_model_info(settings.model);
  if (info.head == Head::scalar) {
    if (!settings.baseline.empty())
      fail_input("a reward model cannot answer prompts", "--model " + settings.model, "give a language model");
    return reward_model_figures(settings, run, info);
  }
  return settings.baseline.empty() ? language_model_figures(settings, run, info)
                                   : Comparison(settings, run, info).figures();
}

int run_eval(const EvalSettings& settings) {
  fmt::print("{}\n", evaluate(settings).dump());
  return 0;
}

}  // namespace tercet
