#include <algorithm>

#include "base/log.h"
#include "base/rng.h"
#include "kernels/ranking_loss.h"
#include "train/supervised_run.h"

namespace tercet {
namespace {

constexpr int kSplitShare = 1;
constexpr size_t kTrainingSamples = 1000;              // where nothing is held out
constexpr uint64_t kShuffleLabelsSite = ~uint64_t{0};  // apart from the epochs' sites

int32_t first_difference(const PreferencePair& pair) {
  const auto& [a, b] = std::tie(pair.chosen.ids, pair.rejected.ids);
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class RewardRun final : public SupervisedRun {
 public:
  RewardRun(const RewardSettings& settings, const Json& recorded)
      : SupervisedRun(settings, recorded, "reward", settings.model, Head::scalar),
        token_loss_(settings.loss == "tokens"),
        shuffle_labels_(settings.shuffle_labels) {
    if (settings.loss != "last" && settings.loss != "tokens")
      fail_input(fmt::format("unknown choice \"{}\"", settings.loss), "--loss", "use last or tokens");
  }

 private:
  int64_t load_data() override {
    data_ = load_pairs(data_options(settings_, settings_.data, info_, kSplitShare), tokenizer_);
    log::info("data: {} pairs, {} tokens; {}", data_.pairs.size(), data_.tokens, data_.drops.text());
    if (shuffle_labels_) shuffle_labels();
    if (!settings_.eval_data.empty()) {
      held_out_ = load_pairs(data_options(settings_, settings_.eval_data, info_, kSplitShare), tokenizer_);
      log::info("held out: {} pairs; {}", held_out_.pairs.size(), held_out_.drops.text());
    }
    return static_cast<int64_t>(data_.pairs.size());
  }

  void shuffle_labels() {
    const RandomStream random(settings_.seed, RandomPurpose::shuffle, kShuffleLabelsSite);
    for (PreferencePair& pair : data_.pairs)
      if (random.bits(pair.record) & 1u) std::swap(pair.chosen, pair.rejected);
    log::warn("--shuffle-labels: chosen and rejected are swapped at random; this is a control");
  }

  bool has_held_out() const override { return !held_out_.pairs.empty(); }
  int64_t largest_item() const override { return 2 * settings_.max_length; }

  // The pairs of one micro-batch, chosen and rejected answers alternating.
  struct MicroBatch {
    RaggedBatch batch;
    std::vector<int32_t> last_rows;
    std::vector<int32_t> first_differences;
  };

  MicroBatch make_micro_batch(const std::vector<int64_t>& items, int64_t begin, int64_t end) const {
    MicroBatch micro;
    for (int64_t i = begin; i < end; ++i) {
      const PreferencePair& pair = data_.pairs[static_cast<size_t>(items[static_cast<size_t>(i)])];
      for (const Sequence* sequence : {&pair.chosen, &pair.rejected}) {
        micro.batch.append(sequence->ids, sequence->sample);
        micro.last_rows.push_back(micro.batch.offsets.back() - 1);
      }
      micro.first_differences.push_back(first_difference(pair));
    }
    return micro;
  }

  // Adds the micro-batch's losses to loss_sum and its scores at the last tokens to `scores`.
  void accumulate_micro_batch(const MicroBatch& micro, double scale, const DropoutOptions& dropout, double& loss_sum,
                              PairScores& scores) {
    const auto pairs = static_cast<int64_t>(micro.first_differences.size());
    std::vector<int32_t> rows = micro.last_rows;
    if (token_loss_) {
      rows.resize(micro.batch.tokens.size());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
    }
    model_->accumulate_score_loss(
        micro.batch, rows,
        [&](Stream& stream, const Tensor& values, const Tensor& d_values) {
          const Tensor loss = loss_.row_range(0, pairs);
          if (token_loss_) {
            upload(stream, offsets_, micro.batch.offsets);
            upload(stream, differences_, micro.first_differences);
            token_ranking_loss(stream, {.scores = values,
                                        .offsets = offsets_.row_range(0, 2 * pairs + 1),
                                        .first_difference = differences_.row_range(0, pairs),
                                        .loss = loss,
                                        .d_scores = d_values,
                                        .scale = scale});
          } else {
            ranking_loss(stream, {.scores = values, .loss = loss, .d_scores = d_values, .scale = scale});
          }
          for (const double value : to_host(stream, loss)) loss_sum += value;
          const std::vector<double> host = to_host(stream, values);
          for (size_t p = 0; p < micro.first_differences.size(); ++p) {
            scores.chosen.push_back(host[token_loss_ ? static_cast<size_t>(micro.last_rows[2 * p]) : 2 * p]);
            scores.rejected.push_back(host[token_loss_ ? static_cast<size_t>(micro.last_rows[2 * p + 1]) : 2 * p + 1]);
          }
        },
        dropout);
  }

  static void upload(Stream& stream, const Tensor& target, const std::vector<int32_t>& values) {
    stream.copy_to_device(target.data, values.data(), values.size() * sizeof(int32_t));
    stream.synchronize();
  }

  std::vector<Slot> own_footprint() const override {
    const auto pairs = static_cast<size_t>(limits_.sequences);
    const auto slot = [&](const char* name, size_t bytes) {
      return Slot{name, MemoryClass::workspace, bytes, Phase::train_actor, Phase::train_actor};
    };
    return {slot("reward/loss", pairs * dtype_size(statistics_dtype(run_.dtype))),
            slot("reward/offsets", (2 * pairs + 1) * sizeof(int32_t)),
            slot("reward/differences", pairs * sizeof(int32_t))};
  }

  void take_own_slots() override {
    loss_ = arena_->take("reward/loss", statistics_dtype(run_.dtype), {limits_.sequences});
    offsets_ = arena_->take("reward/offsets", DType::i32, {2 * limits_.sequences + 1});
    differences_ = arena_->take("reward/differences", DType::i32, {limits_.sequences});
  }

  Json accumulate(const std::vector<int64_t>& items, const DropoutOptions& dropout, double& loss) override {
    std::vector<int64_t> counts;
    std::vector<PreferencePair> pairs;
    for (const int64_t item : items) {
      pairs.push_back(data_.pairs[static_cast<size_t>(item)]);
      counts.push_back(pairs.back().token_count());
      tokens_seen_ += counts.back();
    }
    const double scale = 1 / static_cast<double>(items.size());
    double loss_sum = 0;
    PairScores scores;
    for (const auto& [begin, end] : cut_micro_batches(counts, limits_.tokens, limits_.sequences))
      accumulate_micro_batch(make_micro_batch(items, begin, end), scale, dropout, loss_sum, scores);
    loss = loss_sum * scale;
    const RewardFigures figures = reward_figures(scores, pairs);
    Json metrics = Json::object();
    metrics.set("rm/loss", loss).set("rm/acc", figures.accuracy()).set("rm/acc_ties", figures.ties);
    metrics.set("rm/margin_mean", figures.margin_mean).set("rm/chosen_mean", figures.chosen_mean);
    metrics.set("rm/rejected_mean", figures.rejected_mean).set("rm/std", figures.score_sd);
    return metrics;
  }

  Json evaluate(bool last, std::vector<Json>& samples) override {
    const PairScores scores = score_pairs(*model_, held_out_.pairs, limits_);
    const RewardFigures figures = reward_figures(scores, held_out_.pairs);
    const Interval interval = figures.accuracy_interval();
    Json metrics = Json::object();
    metrics.set("eval/loss", figures.loss).set("eval/accuracy", figures.accuracy());
    metrics.set("eval/accuracy_low", interval.low).set("eval/accuracy_high", interval.high);
    metrics.set("eval/ties", figures.ties).set("eval/margin", figures.margin_mean).set("eval/pairs", figures.pairs);
    metrics.set("eval/shorter_wins", figures.shorter_wins);
    if (last) add_samples(held_out_.pairs, scores, held_out_.pairs.size(), samples);
    return metrics;
  }

  // Mean and standard deviation of the scores on all training answers, which PPO normalises by.
  void complete(ModelInfo& info, std::vector<Json>& samples) override {
    const PairScores scores = score_pairs(*model_, data_.pairs, limits_);
    if (!has_held_out()) add_samples(data_.pairs, scores, kTrainingSamples, samples);
    info.affine = score_affine(scores);
    if (!(info.affine->sd > 0))
      fail_run("all training answers have one score", command_, "train for longer or with a higher --lr");
    log::info("scores of the training answers: mean {:.4f}, standard deviation {:.4f}", info.affine->mean,
              info.affine->sd);
  }

  std::string summary(const Json& metrics) const override {
    return fmt::format("loss {:.4f}  accuracy {:.3f}  margin {:.3f}", metrics.at("rm/loss").as_double(),
                       metrics.at("rm/acc").as_double(), metrics.at("rm/margin_mean").as_double());
  }

  // The first `count` pairs with their scores.
  void add_samples(const std::vector<PreferencePair>& pairs, const PairScores& scores, size_t count,
                   std::vector<Json>& samples) const {
    for (size_t i = 0; i < std::min(count, pairs.size()); ++i) {
      const PreferencePair& pair = pairs[i];
      const auto prompt = static_cast<size_t>(pair.chosen.prompt_length);
      const auto text = [&](const Sequence& sequence, size_t begin, size_t end) {
        return tokenizer_.decode_utf8(std::span(sequence.ids).subspan(begin, end - begin));
      };
      Json sample = Json::object();
      sample.set("index", static_cast<int64_t>(i)).set("record", pair.record).set("held_out", has_held_out());
      sample.set("prompt", text(pair.chosen, 0, prompt));
      sample.set("chosen", text(pair.chosen, prompt, pair.chosen.ids.size()));
      sample.set("rejected", text(pair.rejected, prompt, pair.rejected.ids.size()));
      sample.set("chosen_score", scores.chosen[i]).set("rejected_score", scores.rejected[i]);
      sample.set("margin", scores.chosen[i] - scores.rejected[i]);
      sample.set("chosen_length", pair.chosen.answer_length()).set("rejected_length", pair.rejected.answer_length());
      samples.push_back(std::move(sample));
    }
  }

  const DropCounts& drops(bool held_out) const override { return held_out ? held_out_.drops : data_.drops; }

  bool token_loss_;
  bool shuffle_labels_;
  PairData data_, held_out_;
  Tensor loss_, offsets_, differences_;
};

}  // namespace

int run_reward(const RewardSettings& settings, const Json& recorded) {
  return run_with_signals([&] { return RewardRun(settings, recorded).run(); });
}

}  // namespace tercet
