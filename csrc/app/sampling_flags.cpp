// Flags of responses.
#include "app/flag_groups.h"

namespace tercet {

std::vector<Flag> sampling_flags() {
  constexpr auto group = FlagGroup::sampling;
  const std::string why =
      "ppo samples from the whole distribution: a truncated one would not be the policy that it trains";
  const std::string remedy = "leave the flag out; `generate` has it";
  return {
      {.name = "max-new-tokens",
       .group = group,
       .field = field(&PpoSettings::max_new_tokens, &EvalSettings::max_new_tokens, &GenerateSettings::max_new_tokens),
       .value = "N",
       .help = "Longest response in tokens, its final id 2 included.",
       .trl = "response_length",
       .deepspeed_chat = "max_answer_seq_len",
       .check = positive()},
      {.name = "temperature",
       .group = group,
       .field = field(&PpoSettings::temperature),
       .value = "X",
       .help = "Temperature of sampling and of all log-probabilities.",
       .check = positive()},
      {.name = "temperature",
       .group = group,
       .field = field(&EvalSettings::temperature, &GenerateSettings::temperature),
       .value = "X",
       .help = "Temperature of sampling; 0 takes the likeliest token.",
       .check = not_negative()},
      {.name = "top-k",
       .group = group,
       .field = field(&GenerateSettings::top_k),
       .value = "N",
       .help = "Sample among the N likeliest tokens.",
       .check = not_negative(),
       .default_words = "off",
       .refused = {refused_by_ppo(why, remedy)}},
      {.name = "top-p",
       .group = group,
       .field = field(&GenerateSettings::top_p),
       .value = "X",
       .help = "Sample among the likeliest tokens that together have this probability.",
       .check = share(),
       .default_words = "off",
       .refused = {refused_by_ppo(why, remedy)}},
      {.name = "stop",
       .group = group,
       .field = field(&GenerateSettings::stop),
       .value = "TEXT...",
       .help = "Texts that end a response; they are not part of it.",
       .default_words = "none"},
      {.name = "generation-slots",
       .group = group,
       .field = field(&PpoSettings::generation_slots, &GenerateSettings::generation_slots),
       .value = "N",
       .help = "Sequences that are decoded together.",
       .trl = "local_rollout_forward_batch_size",
       .check = not_negative(),
       .default_words = "chosen from the number of prompts"},
  };
}

}  // namespace tercet
