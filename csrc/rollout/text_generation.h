// From prompts as text to responses as text: what `generate` and `chat` need around a Generator.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/dialogue.h"
#include "rollout/generator.h"
#include "text/tokenizer.h"

namespace tercet {

// The text of a response that grows by one token at a time and ends before the first stop string in it. Stop strings
// are looked for in the decoded text, so that they may begin and end inside tokens and span several.
class ResponseText {
 public:
  // Throws Error(Fault::input) that names --stop when a stop string is empty or not UTF-8.
  ResponseText(Tokenizer tokenizer, std::vector<std::string> stops);

  // Adds a token; true when the text now contains a stop string. No token may follow then.
  bool push(int32_t id);

  // No token follows: an unfinished code point becomes U+FFFD.
  void finish();

  // The text before the first stop string. Ids 1 and 2 give none; ill-formed UTF-8 is U+FFFD.
  const std::string& text() const { return text_; }

  // The part of text() that was not given out before and that no later token can take back: the longest end that may
  // become a stop string is held back until it does not, or until finish().
  std::string take();

 private:
  size_t held_back() const;

  StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string text_;
  size_t taken_ = 0;
  bool complete_ = false;
};

// Prompts from texts: the template, then id 2 and the ids of the text; text i has sample number i.
std::vector<Prompt> text_prompts(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                 PromptTemplate prompt_template);

struct TextGenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;
  std::vector<std::string> stops;  // any of them ends a response and is not part of it
};

struct TextGeneration {
  std::string prompt;             // the text that was encoded, template included
  std::string response;           // without the stop string and the final id 2; spaces as generated
  std::vector<int32_t> ids;       // all tokens that were drawn, those of the stop string and id 2 among them
  std::vector<double> log_probs;  // one per id
  Finish finish = Finish::length;
};

// "end", "length" or "stop", as in the output of `generate`.
std::string_view finish_name(Finish finish);

struct TextCallbacks {
  // New text of a response, while it is being drawn; the pieces of one response, joined, are its text.
  std::function<void(size_t prompt, std::string_view piece)> piece;
  // Asked after each token whether to end its response there, with finish `stopped`.
  std::function<bool()> cancelled;
  // A complete response; called in the order of the prompts, as soon as all earlier ones are complete.
  std::function<void(size_t prompt, const TextGeneration& generation)> item;
};

// One response per prompt, in their order; any callback may be empty. Throws what Generator::generate throws, and
// Error(Fault::input) for a stop string that is empty or not UTF-8. An exception of a callback passes through.
std::vector<TextGeneration> generate_texts(Stream& stream, Generator& generator, const Tokenizer& tokenizer,
                                           std::span<const Prompt> prompts, const TextGenerationOptions& options,
                                           const TextCallbacks& callbacks = {});

}  // namespace tercet
