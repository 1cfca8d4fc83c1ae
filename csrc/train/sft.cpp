#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "train/report_samples.h"
#include "train/supervised_run.h"

namespace tercet {
namespace {

constexpr int kSplitShare = 0;

class SftRun final : public SupervisedRun {
 public:
  SftRun(const SftSettings& settings, const Json& recorded)
      : SupervisedRun(settings, recorded, "sft", settings.model, Head::language_model),
        all_tokens_(settings.loss_on == "all") {
    if (settings.loss_on != "response" && settings.loss_on != "all")
      fail_input(fmt::format("unknown choice \"{}\"", settings.loss_on), "--loss-on", "use response or all");
  }

 private:
  int64_t load_data() override {
    data_ = load_sft(data_options(settings_, settings_.data, info_, kSplitShare), tokenizer_);
    log::info("data: {} sequences, {} tokens; {}", data_.sequences.size(), data_.tokens, data_.drops.text());
    if (!settings_.eval_data.empty()) {
      held_out_ = load_sft(data_options(settings_, settings_.eval_data, info_, kSplitShare), tokenizer_);
      log::info("held out: {} sequences; {}", held_out_.sequences.size(), held_out_.drops.text());
    }
    return static_cast<int64_t>(data_.sequences.size());
  }

  bool has_held_out() const override { return !held_out_.sequences.empty(); }
  int64_t largest_item() const override { return settings_.max_length; }

  int64_t loss_from(const Sequence& sequence) const { return all_tokens_ ? 1 : sequence.prompt_length; }

  Json accumulate(const std::vector<int64_t>& items, const DropoutOptions& dropout, double& loss) override {
    std::vector<int64_t> counts;
    int64_t tokens = 0;
    int64_t labelled = 0;
    for (const int64_t item : items) {
      const Sequence& sequence = data_.sequences[static_cast<size_t>(item)];
      counts.push_back(sequence.token_count());
      tokens += sequence.token_count();
      labelled += sequence.token_count() - loss_from(sequence);
    }
    if (labelled == 0) fail_input("a training step has no token that carries a loss", "--data", "check the answers");
    double log_prob_sum = 0;
    double entropy_sum = 0;
    double likeliest = 0;
    for (const auto& [begin, end] : cut_micro_batches(counts, limits_.tokens, limits_.sequences)) {
      RaggedBatch batch;
      std::vector<int64_t> from;
      for (int64_t i = begin; i < end; ++i) {
        const Sequence& sequence = data_.sequences[static_cast<size_t>(items[static_cast<size_t>(i)])];
        batch.append(sequence.ids, sequence.sample);
        from.push_back(loss_from(sequence));
      }
      const ModelInstance::TokenValues values = model_->accumulate_cross_entropy(
          batch, prediction_rows(batch, from), 1 / static_cast<double>(labelled), dropout);
      for (const double log_prob : values.log_probs) log_prob_sum += log_prob;
      for (const double entropy : values.entropies) entropy_sum += entropy;
      for (const double one : values.likeliest) likeliest += one;
    }
    tokens_seen_ += tokens;
    loss = -log_prob_sum / static_cast<double>(labelled);
    Json metrics = Json::object();
    metrics.set("sft/loss", loss).set("sft/ppl", std::exp(loss));
    metrics.set("sft/token_acc", likeliest / static_cast<double>(labelled));
    metrics.set("sft/entropy", entropy_sum / static_cast<double>(labelled));
    metrics.set("sft/num_tokens", tokens).set("sft/tokens_labelled", labelled);
    return metrics;
  }

  Json evaluate(bool, std::vector<Json>& samples) override {
    const LanguageModelFigures figures = evaluate_language_model(*model_, held_out_.sequences, all_tokens_, limits_);
    Json metrics = Json::object();
    metrics.set("eval/loss", figures.loss).set("eval/ppl", figures.perplexity()).set("eval/tokens", figures.tokens);
    metrics.set("eval/token_acc", figures.token_accuracy).set("eval/entropy", figures.entropy);
    for (size_t i = 0; i < std::min(kFixedSamples, held_out_.sequences.size()); ++i) {
      const Sequence& sequence = held_out_.sequences[i];
      const std::span<const int32_t> ids = sequence.ids;
      const auto prompt = static_cast<size_t>(sequence.prompt_length);
      Json sample = Json::object();
      sample.set("index", static_cast<int64_t>(i)).set("record", sequence.record);
      sample.set("prompt", tokenizer_.decode_utf8(ids.first(prompt)));
      sample.set("response", tokenizer_.decode_utf8(ids.subspan(prompt)));
      samples.push_back(sample.set("loss", figures.losses[i]).set("length", sequence.answer_length()));
    }
    return metrics;
  }

  void complete(ModelInfo& info, std::vector<Json>&) override { info.affine.reset(); }

  std::string summary(const Json& metrics) const override {
    return fmt::format("loss {:.4f}  ppl {:.2f}", metrics.at("sft/loss").as_double(),
                       metrics.at("sft/ppl").as_double());
  }

  const DropCounts& drops(bool held_out) const override { return held_out ? held_out_.drops : data_.drops; }

  bool all_tokens_;
  SftData data_, held_out_;
};

}  // namespace

int run_sft(const SftSettings& settings, const Json& recorded) {
  return run_with_signals([&] { return SftRun(settings, recorded).run(); });
}

}  // namespace tercet
