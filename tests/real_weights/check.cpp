// Measures a model file against the figures that are published for OPT's weights. `make test-real OPT=FOLDER` imports
// the folder and runs this.
#include <CLI/CLI.hpp>

#include "app/inference.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "real_weights/protocol.h"

namespace tercet::testing {
namespace {

struct Options {
  std::string model, expected, name, text;
  std::string device = "auto";
  int64_t windows = 0;
};

// GPTQ's fp16 figures and a rerun by others differ by up to 4e-4; two decimals are printed.
constexpr double kPerplexityTolerance = 1e-3;
// Four decimals are printed, of fp32 values.
constexpr double kProbabilityTolerance = 1e-4;
constexpr double kCrossEntropyTolerance = 1e-4;
constexpr double kHiddenTolerance = 5e-5;
constexpr double kLogitTolerance = 1e-4;

std::vector<int32_t> id_list(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

const Json::Array& list(const Json& json, const char* key) {
  static const Json::Array none;
  const Json* found = json.find(key);
  return found == nullptr ? none : found->as_array();
}

// The released size with this configuration's sizes.
std::string size_name(const OptConfig& config, const Json& models, const std::string& path) {
  for (const auto& [name, unused] : models.as_object()) {
    const OptConfig size = OptConfig::released(name);
    if (size.hidden_size == config.hidden_size && size.num_hidden_layers == config.num_hidden_layers &&
        size.vocab_size == config.vocab_size)
      return name;
  }
  fail_input("no figures are published for a model of these sizes", path, "give one of Meta's OPT models");
}

// The forward passes of one model in fp32.
class Forward {
 public:
  Forward(const Options& options, const ModelInfo& info, Checks& checks)
      : checks_(checks), run_(open_run_device(settings(options))), info_(info), limits_(forward_limits(0, 2048)) {
    limits_.tokens = std::min<int64_t>(limits_.tokens, info.config.max_position_embeddings);
    model_.emplace(run_, options.model, info, limits_);
  }

  static ModelSettings settings(const Options& options) {
    ModelSettings settings;
    settings.model = options.model;
    settings.device = options.device;
    settings.dtype = "fp32";
    return settings;
  }

  void probabilities(const Json& expected) {
    const std::vector<int32_t> ids = id_list(expected.at("ids")), likeliest = id_list(expected.at("likeliest"));
    PredictionRows rows;
    for (size_t row = 0; row < ids.size(); ++row) {
      rows.rows.push_back(static_cast<int32_t>(row));
      rows.targets.push_back(likeliest[row]);
    }
    const ModelInstance::TokenValues values = model_->instance().log_probs(batch_of(ids), rows);
    for (size_t row = 0; row < ids.size(); ++row) {
      const std::string what = fmt::format("likeliest token after {} ids", row + 1);
      checks_.equal(fmt::format("{} is {}", what, likeliest[row]), values.likeliest[row], 1.0);
      checks_.value(what + ", probability", std::exp(values.log_probs[row]),
                    expected.at("probability").as_array()[row].as_double(), kProbabilityTolerance);
    }
    checks_.value("cross-entropy of these ids", cross_entropy(ids), expected.at("cross_entropy").as_double(),
                  kCrossEntropyTolerance);
  }

  void last_hidden_state(const Json& expected) {
    const std::vector<double> hidden = model_->instance().hidden_states(batch_of(id_list(expected.at("ids"))));
    const auto width = static_cast<size_t>(info_.config.word_embed_proj_dim);
    const Json::Array& rows = expected.at("values").as_array();
    for (size_t row = 0; row < rows.size(); ++row)
      for (size_t column = 0; column < rows[row].as_array().size(); ++column)
        checks_.value(fmt::format("last hidden state, row {}, column {}", row, column), hidden[row * width + column],
                      rows[row].as_array()[column].as_double(), kHiddenTolerance);
  }

  // Means over the vocabulary of the logits at each position: mean_j (e_j . h) = (mean_j e_j) . h.
  void mean_logits(const Json& expected, const Tokenizer& tokenizer) {
    const std::vector<int32_t> ids = tokenizer.encode(expected.at("text").as_string());
    const std::vector<double> hidden = model_->instance().hidden_states(batch_of(ids)), mean = mean_embedding();
    const Json::Array& values = expected.at("values").as_array();
    checks_.equal<size_t>("tokens of \"" + expected.at("text").as_string() + "\"", ids.size(), values.size());
    for (size_t row = 0; row < std::min(ids.size(), values.size()); ++row) {
      double sum = 0;
      for (size_t column = 0; column < mean.size(); ++column) sum += mean[column] * hidden[row * mean.size() + column];
      checks_.value(fmt::format("mean logit at position {}", row), sum, values[row].as_double(), kLogitTolerance);
    }
  }

  void perplexity(const std::vector<std::vector<int32_t>>& windows, const Json& expected, int64_t count) {
    const bool whole = count == 0 || count >= std::ssize(windows);
    const size_t end = whole ? windows.size() : static_cast<size_t>(count);
    double sum = 0;
    for (size_t i = 0; i < end; ++i) {
      sum += cross_entropy(windows[i]);
      if ((i + 1) % 20 == 0)
        log::info("{} of {} windows: perplexity {:.4f}", i + 1, end, std::exp(sum / static_cast<double>(i + 1)));
    }
    const double seen = std::exp(sum / static_cast<double>(end)), published = expected.as_double();
    if (whole)
      checks_.value("perplexity", seen, published, kPerplexityTolerance * published);
    else
      checks_.missing(fmt::format("perplexity (of {} windows: {:.4f})", end, seen), "all windows are needed");
  }

 private:
  static RaggedBatch batch_of(const std::vector<int32_t>& ids) {
    RaggedBatch batch;
    batch.append(ids, 0);
    return batch;
  }

  double cross_entropy(const std::vector<int32_t>& ids) {
    const RaggedBatch batch = batch_of(ids);
    const std::vector<int64_t> from = {1};
    double sum = 0;
    const ModelInstance::TokenValues values = model_->instance().log_probs(batch, prediction_rows(batch, from));
    for (const double log_prob : values.log_probs) sum -= log_prob;
    return sum / static_cast<double>(values.log_probs.size());
  }

  std::vector<double> mean_embedding() {
    const Tensor embedding = model_->instance().units().weight("model.decoder.embed_tokens.weight");
    const std::vector<double> values = to_host(*run_.stream, embedding);
    std::vector<double> mean(static_cast<size_t>(embedding.columns()));
    for (size_t i = 0; i < values.size(); ++i)
      mean[i % mean.size()] += values[i] / static_cast<double>(embedding.rows());
    return mean;
  }

  Checks& checks_;
  RunDevice run_;
  const ModelInfo& info_;
  EvaluationLimits limits_;
  std::optional<ScoringModel> model_;
};

// Greedy responses to prompts without a template, up to `length` ids with id 2 and the prompt.
void check_greedy(const Options& options, const ModelInfo& info, const Tokenizer& tokenizer, const Json::Array& cases,
                  Checks& checks) {
  RunDevice run = open_run_device(Forward::settings(options));
  AnsweringModel model(
      run, options.model, info,
      {.prefix = "generator", .dtype = run.dtype, .slots = 1, .max_prompt_tokens = 64, .max_new_tokens = 64});
  for (const Json& expected : cases) {
    const std::string& text = expected.at("prompt").as_string();
    const std::vector<Prompt> prompts = text_prompts(tokenizer, std::vector{text}, PromptTemplate::none);
    TextGenerationOptions generation{.sampling = {.temperature = 0}};
    generation.max_new_tokens = expected.at("length").as_int() - prompts[0].token_count();
    const auto answers = generate_texts(*run.stream, model.generator(), tokenizer, prompts, generation);
    checks.equal("greedy after " + expected.at("prompt").dump(), Json(answers[0].response).dump(),
                 expected.at("response").dump());
  }
}

void check_text(const std::vector<int32_t>& ids, const Json& expected, Checks& checks) {
  const std::vector<int32_t> first = id_list(expected.at("first"));
  checks.equal("ids of the text", std::ssize(ids), static_cast<std::ptrdiff_t>(expected.at("ids").as_int()));
  checks.equal("its first ids", std::ranges::equal(first, std::span(ids).first(std::min(first.size(), ids.size()))),
               true);
  checks.equal("SHA-256 of its ids", sha256_of(ids), expected.at("sha256").as_string());
}

int run(const Options& options) {
  const Json expected = parse_json(read_file(options.expected), options.expected);
  const ModelInfo info = read_language_model_info(options.model);
  const Tokenizer tokenizer = info.tokenizer(options.model);
  const Json& models = expected.at("models");
  const std::string name = options.name.empty() ? size_name(info.config, models, options.model) : options.name;
  const Json& figures = models.at(name);
  Checks checks;
  log::info("{} against what is published for {}", options.model, name);
  {
    Forward forward(options, info, checks);
    for (const Json& one : list(figures, "probabilities")) forward.probabilities(one);
    for (const Json& one : list(figures, "last_hidden_state")) forward.last_hidden_state(one);
    for (const Json& one : list(figures, "mean_logits")) forward.mean_logits(one, tokenizer);
    if (options.text.empty()) {
      checks.missing("perplexity", "the raw test text of WikiText-2: make test-real OPT=FOLDER WIKITEXT=FILE");
    } else {
      const std::vector<int32_t> ids = text_ids(tokenizer, joined_rows(read_file(options.text)));
      check_text(ids, expected.at("text"), checks);
      const auto windows = windows_of(ids, static_cast<size_t>(expected.at("window").as_int()));
      if (windows.empty()) fail_input("the text is shorter than a window", options.text, "give the whole text");
      forward.perplexity(windows, figures.at("perplexity"), options.windows);
    }
  }
  if (!list(figures, "greedy").empty()) check_greedy(options, info, tokenizer, list(figures, "greedy"), checks);
  return checks.finish();
}

}  // namespace
}  // namespace tercet::testing

int main(int count, char** words) {
  using namespace tercet;
  testing::Options options;
  CLI::App app("Measures a model against published figures of OPT");
  app.add_option("--model", options.model, "a model file of tercet")->required();
  app.add_option("--expected", options.expected, "the figures (expected.json)")->required();
  app.add_option("--name", options.name, "whose figures; by default those of the model's size");
  app.add_option("--text", options.text, "the raw text of the perplexity");
  app.add_option("--windows", options.windows, "windows of the perplexity; 0: all");
  app.add_option("--device", options.device, "auto, cpu or cuda");
  CLI11_PARSE(app, count, words);
  try {
    return testing::run(options);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.fault() == Fault::input ? 2 : 1;
  }
}
