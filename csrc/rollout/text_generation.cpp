#include "rollout/text_generation.h"

#include <algorithm>

namespace tercet {
namespace {

void check_stops(std::span<const std::string> stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) fail_input("an empty stop string", "--stop", "give at least one character");
    if (replace_ill_formed_utf8(stop).replacements > 0)
      fail_input("a stop string that is not UTF-8", "--stop", "give it in UTF-8");
  }
}

// Turns tokens and ends of responses, in the order of the generator, into texts in the order of the prompts.
class TextCollector {
 public:
  TextCollector(const Tokenizer& tokenizer, std::span<const Prompt> prompts, const std::vector<std::string>& stops,
                const TextCallbacks& callbacks)
      : callbacks_(callbacks), complete_(prompts.size(), false) {
    check_stops(stops);
    for (const Prompt& prompt : prompts) {
      texts_.emplace_back(tokenizer, stops);
      items_.emplace_back().prompt = prompt.text;
    }
  }

  bool add_token(size_t index, int32_t id) {
    const bool stopped = texts_[index].push(id);
    give_piece(index);
    return stopped || (callbacks_.cancelled && callbacks_.cancelled());
  }

  void finish(size_t index, const Generation& generation) {
    texts_[index].finish();
    give_piece(index);
    TextGeneration& item = items_[index];
    item.response = texts_[index].text();
    item.ids = generation.response;
    item.log_probs = generation.log_probs;
    item.finish = generation.finish;
    complete_[index] = true;
    for (; next_ < items_.size() && complete_[next_]; ++next_)
      if (callbacks_.item) callbacks_.item(next_, items_[next_]);
  }

  std::vector<TextGeneration> take_items() { return std::move(items_); }

 private:
  void give_piece(size_t index) {
    if (!callbacks_.piece) return;
    const std::string piece = texts_[index].take();
    if (!piece.empty()) callbacks_.piece(index, piece);
  }

  const TextCallbacks& callbacks_;
  std::vector<ResponseText> texts_;
  std::vector<TextGeneration> items_;
  std::vector<bool> complete_;
  size_t next_ = 0;
};

}  // namespace

ResponseText::ResponseText(Tokenizer tokenizer, std::vector<std::string> stops)
    : decoder_(std::move(tokenizer)), stops_(std::move(stops)) {
  check_stops(stops_);
}

bool ResponseText::push(int32_t id) {
  TERCET_REQUIRE(!complete_, "a token after the end of a response");
  const size_t old_size = text_.size();
  text_ += decoder_.push(id);
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t overlap = std::min(old_size, stop.size() - 1);
    first = std::min(first, text_.find(stop, old_size - overlap));
  }
  if (first == std::string::npos) return false;
  text_.resize(first);
  complete_ = true;
  return true;
}

void ResponseText::finish() {
  if (complete_) return;
  text_ += decoder_.finish();
  complete_ = true;
}

size_t ResponseText::held_back() const {
  if (complete_) return 0;
  size_t held = 0;
  for (const std::string& stop : stops_)
    for (size_t size = std::min(stop.size() - 1, text_.size()); size > held; --size)
      if (std::string_view(text_).ends_with(std::string_view(stop).substr(0, size))) held = size;
  return held;
}

std::string ResponseText::take() {
  const size_t end = text_.size() - held_back();
  std::string piece = text_.substr(taken_, end - taken_);
  taken_ = end;
  return piece;
}

std::vector<Prompt> text_prompts(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                 PromptTemplate prompt_template) {
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < texts.size(); ++i) {
    Prompt& prompt = prompts.emplace_back();
    prompt.text = apply_template(prompt_template, texts[i]);
    prompt.ids = {Tokenizer::end_id};
    const auto ids = tokenizer.encode(prompt.text);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    prompt.record = prompt.sample = i;
  }
  return prompts;
}

std::string_view finish_name(Finish finish) {
  switch (finish) {
    case Finish::end:
      return "end";
    case Finish::length:
      return "length";
    case Finish::stopped:
      return "stop";
  }
  return "unknown";
}

std::vector<TextGeneration> generate_texts(Stream& stream, Generator& generator, const Tokenizer& tokenizer,
                                           std::span<const Prompt> prompts, const TextGenerationOptions& options,
                                           const TextCallbacks& callbacks) {
  TextCollector collector(tokenizer, prompts, options.stops, callbacks);
  std::vector<GenerationRequest> requests;
  for (const Prompt& prompt : prompts) requests.push_back({prompt.ids, prompt.sample, options.max_new_tokens});
  generator.generate(
      stream, requests, options.sampling,
      [&](size_t index, std::span<const int32_t> response) { return collector.add_token(index, response.back()); },
      [&](size_t index, const Generation& generation) { collector.finish(index, generation); });
  return collector.take_items();
}

}  // namespace tercet
