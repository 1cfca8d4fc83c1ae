#include "rollout/generator.h"

#include <algorithm>
#include <cmath>

#include "model/flops.h"
#include "rollout/decoder.h"

namespace tercet {
namespace {

void check_sampling(const SamplingOptions& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0)
    fail_input(fmt::format("a temperature of {}", sampling.temperature), "--temperature",
               "give a number above 0, or 0 for the most probable token");
  if (sampling.top_k < 0)
    fail_input(fmt::format("the {} most probable tokens", sampling.top_k), "--top-k",
               "give the number of tokens to keep, or 0 for all");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    fail_input(fmt::format("a probability of {}", sampling.top_p), "--top-p", "give a number above 0 and at most 1");
}

void check_request(const GenerationRequest& request, size_t index, const GeneratorOptions& options,
                   const OptConfig& config) {
  const std::string where = fmt::format("prompt {}", index + 1);
  const auto prompt = std::ssize(request.prompt);
  if (prompt == 0) fail_input("a prompt without a token", where, "begin each prompt with id 2");
  if (request.max_new_tokens < 1)
    fail_input(fmt::format("a response of at most {} tokens", request.max_new_tokens), where,
               "give --max-new-tokens of at least 1");
  if (prompt > options.prefill_tokens)
    fail_input(
        fmt::format("the prompt has {} tokens and at most {} are processed at once", prompt, options.prefill_tokens),
        where, "shorten the prompt or raise --max-prompt-tokens");
  const std::string tokens = fmt::format("{} prompt tokens and {} new ones", prompt, request.max_new_tokens);
  const int64_t capacity = options.max_prompt_tokens + options.max_new_tokens;
  if (request.max_new_tokens > config.max_position_embeddings - prompt)
    fail_input(fmt::format("{}, the model has {} positions", tokens, config.max_position_embeddings), where,
               "shorten the prompt or lower --max-new-tokens");
  if (request.max_new_tokens > capacity - prompt)
    fail_input(fmt::format("{}, the KV cache holds {} per sequence", tokens, capacity), where,
               "shorten the prompt, lower --max-new-tokens or raise --max-prompt-tokens");
}

// The requests of one call: those that wait, those that have a slot, and what became of the others.
class ContinuousBatch {
 public:
  ContinuousBatch(Decoder& decoder, const GeneratorOptions& options, std::span<const GenerationRequest> requests,
                  const SamplingOptions& sampling, const Generator::StopCheck& stop,
                  const Generator::Finished& finished)
      : decoder_(decoder),
        options_(options),
        requests_(requests),
        sampling_(sampling),
        stop_(stop),
        finished_(finished),
        generations_(requests.size()) {
    for (int64_t slot = options.slots; slot-- > 0;) free_slots_.push_back(slot);
  }

  std::vector<Generation> run(Stream& stream) {
    decoder_.cache().release_all();
    for (admit(); !active_.empty(); admit()) step(stream);
    return std::move(generations_);
  }

 private:
  struct Active {
    size_t request = 0;
    int64_t slot = 0;
    int64_t cached = 0;
  };

  // Gives slots to waiting requests, in their order, as far as slots and tokens of one forward allow.
  void admit() {
    int64_t tokens = 0;
    while (next_ < requests_.size() && !free_slots_.empty()) {
      const GenerationRequest& request = requests_[next_];
      tokens += std::ssize(request.prompt);
      if (tokens > options_.prefill_tokens) return;
      // The last token drawn is never cached.
      decoder_.cache().reserve(free_slots_.back(), std::ssize(request.prompt) + request.max_new_tokens - 1);
      active_.push_back({next_++, free_slots_.back(), 0});
      free_slots_.pop_back();
    }
  }

  NewTokens new_tokens(const Active& active) const {
    const GenerationRequest& request = requests_[active.request];
    const auto& response = generations_[active.request].response;
    const std::span<const int32_t> ids = response.empty() ? std::span(request.prompt) : std::span(response).last(1);
    return {active.slot, active.cached, ids, request.sample, std::ssize(response)};
  }

  void step(Stream& stream) {
    inputs_.clear();
    for (const Active& active : active_) inputs_.push_back(new_tokens(active));
    const auto drawn = decoder_.step(stream, inputs_, sampling_);
    size_t kept = 0;
    for (size_t row = 0; row < active_.size(); ++row) {
      Active active = active_[row];
      active.cached += std::ssize(inputs_[row].ids);
      if (accept(active.request, drawn[row])) {
        decoder_.cache().release(active.slot);
        free_slots_.push_back(active.slot);
      } else {
        active_[kept++] = active;
      }
    }
    active_.resize(kept);
  }

  // Appends a token to the response of a request; true when it is the last one.
  bool accept(size_t request, const SampledToken& token) {
    Generation& generation = generations_[request];
    generation.response.push_back(token.id);
    generation.log_probs.push_back(token.log_prob);
    const bool stopped = stop_ && stop_(request, generation.response);
    if (token.id == sampling_.end_id)
      generation.finish = Finish::end;
    else if (stopped)
      generation.finish = Finish::stopped;
    else if (std::ssize(generation.response) == requests_[request].max_new_tokens)
      generation.finish = Finish::length;
    else
      return false;
    if (finished_) finished_(request, generation);
    return true;
  }

  Decoder& decoder_;
  const GeneratorOptions& options_;
  std::span<const GenerationRequest> requests_;
  const SamplingOptions& sampling_;
  const Generator::StopCheck& stop_;
  const Generator::Finished& finished_;
  std::vector<Generation> generations_;
  std::vector<Active> active_;  // in the order of their requests
  std::vector<NewTokens> inputs_;
  std::vector<int64_t> free_slots_;
  size_t next_ = 0;
};

}  // namespace

struct Generator::State {
  State(OptModel& opt, const GeneratorOptions& generator_options, Arena& arena)
      : config(opt.config()), options(generator_options), decoder(opt, generator_options, arena) {}

  const OptConfig& config;
  GeneratorOptions options;
  Decoder decoder;
  double flops = 0;
};

std::vector<Slot> Generator::footprint(const OptConfig& config, const GeneratorOptions& options) {
  return Decoder::footprint(config, options);
}

Generator::Generator(OptModel& model, const GeneratorOptions& options, Arena& arena)
    : state_(std::make_unique<State>(model, options, arena)) {}

Generator::~Generator() = default;

double Generator::flops() const { return state_->flops; }

int64_t Generator::replayed_steps() const { return state_->decoder.replayed_steps(); }

std::vector<Generation> Generator::generate(Stream& stream, std::span<const GenerationRequest> requests,
                                            const SamplingOptions& sampling, const StopCheck& stop,
                                            const Finished& finished) {
  check_sampling(sampling);
  for (size_t index = 0; index < requests.size(); ++index)
    check_request(requests[index], index, state_->options, state_->config);
  std::vector<Generation> generations =
      ContinuousBatch(state_->decoder, state_->options, requests, sampling, stop, finished).run(stream);
  for (size_t i = 0; i < generations.size(); ++i) {
    const auto drawn = static_cast<int64_t>(generations[i].response.size());
    const int64_t fed = static_cast<int64_t>(requests[i].prompt.size()) + drawn - 1;
    state_->flops += forward_flops(state_->config, Head::language_model, {&fed, 1}, drawn);
  }
  return generations;
}

}  // namespace tercet
