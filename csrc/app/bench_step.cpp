// `tercet bench step`.
#include "app/bench_step.h"

#include <algorithm>

#include "base/error.h"
#include "device/memory_plan.h"

namespace tercet {
namespace {

// What flags that are not given stand for.
struct StepDefaults {
  const char* model;
  const char* critic;
  int64_t tokens, batch, prompt, fresh, steps;
};

StepDefaults defaults(DeviceKind device) {
  switch (device) {
    case DeviceKind::cuda:
      return {"opt-1.3b", "opt-350m", 8192, 64, 256, 256, 5};
    case DeviceKind::cpu:
      return {"tiny", "tiny", 512, 8, 32, 32, 3};
    case DeviceKind::emu:
      return {"tiny", "tiny", 64, 2, 8, 8, 1};
  }
  return {};
}

void check_sizes(const StepSizes& sizes) {
  for (const NamedConfig* model : {&sizes.model, &sizes.critic})
    if (sizes.length() > model->config.max_position_embeddings)
      fail_input(fmt::format("{} tokens exceed the {} positions of {}", sizes.length(),
                             model->config.max_position_embeddings, model->name),
                 "--prompt-tokens, --new-tokens", "give fewer or another size");
  if (sizes.model.config.vocab_size != sizes.critic.config.vocab_size)
    fail_input(fmt::format("{} has {} tokens, {} has {}", sizes.model.name, sizes.model.config.vocab_size,
                           sizes.critic.name, sizes.critic.config.vocab_size),
               "--critic-size", "give models of one vocabulary");
  if (sizes.tokens < 2 * sizes.length())
    fail_input(fmt::format("{} are too few for a pair of {} tokens", sizes.tokens, 2 * sizes.length()), "--tokens",
               "give more, or fewer --prompt-tokens and --new-tokens");
}

StepSizes step_sizes(const BenchSettings& settings, DeviceKind device) {
  const StepDefaults standard = defaults(device);
  const auto or_default = [](int64_t given, int64_t otherwise) { return given > 0 ? given : otherwise; };
  if (settings.model_size.size() > 1)
    fail_input("bench step takes one size", "--model-size", "give one, and --critic-size");
  StepSizes sizes;
  sizes.model = bench_config(settings.model_size.empty() ? standard.model : settings.model_size[0], "--model-size");
  const bool same = settings.critic_size.empty() && !settings.model_size.empty() && device != DeviceKind::cuda;
  sizes.critic =
      same ? sizes.model
           : bench_config(settings.critic_size.empty() ? standard.critic : settings.critic_size, "--critic-size");
  sizes.batch = or_default(settings.batch_size, standard.batch);
  sizes.prompt_tokens = or_default(settings.prompt_tokens, standard.prompt);
  sizes.new_tokens = or_default(settings.new_tokens, standard.fresh);
  sizes.tokens = or_default(settings.tokens, std::max(standard.tokens, 2 * sizes.length()));
  sizes.steps = or_default(settings.steps, standard.steps);
  check_sizes(sizes);
  return sizes;
}

std::string heading(const StepSizes& sizes) {
  return fmt::format("steps of {} sequences (or pairs) of {} + {} tokens, micro-batches of {} tokens\n\n", sizes.batch,
                     sizes.prompt_tokens, sizes.new_tokens, sizes.tokens) +
         fmt::format("{:<15}{:<21}{:>12}{:>12}{:>8}{:>14} {:<14}{:>10}{:>8}{:>14}", "phase", "model", "time ms",
                     "least ms", "spread", "rate", "", "TFLOP/s", "MFU", "memory plan");
}

std::string row(const PhaseTime& phase, const DeviceRates& rates) {
  const double flop_per_s = phase.flops / phase.time.median;
  return fmt::format("{:<15}{:<21}{:>12.2f}{:>12.2f}{:>7.0f}%{:>14.1f} {:<14}{:>10.4g}{:>7.1f}%{:>14}", phase.phase,
                     phase.model, phase.time.median * 1e3, phase.time.smallest * 1e3, phase.time.spread * 100,
                     phase.units / phase.time.median, phase.unit + "/s", flop_per_s / 1e12,
                     100 * flop_per_s / rates.reference_flops(), format_bytes(phase.plan_bytes));
}

Json json_line(const PhaseTime& phase, const StepSizes& sizes, const DeviceRates& rates) {
  const double flop_per_s = phase.flops / phase.time.median;
  Json json = Json::object();
  json.set("phase", phase.phase).set("model", phase.model).set("batch", sizes.batch);
  json.set("prompt_tokens", sizes.prompt_tokens).set("new_tokens", sizes.new_tokens);
  json.set("micro_batch_tokens", sizes.tokens).set("seconds", phase.time.median);
  json.set("least_seconds", phase.time.smallest).set("spread", phase.time.spread).set("steps", phase.time.repeats);
  json.set("unit", phase.unit).set("units_per_s", phase.units / phase.time.median);
  json.set("flop", phase.flops).set("flop_per_s", flop_per_s).set("mfu", flop_per_s / rates.reference_flops());
  json.set("plan_bytes", static_cast<uint64_t>(phase.plan_bytes));
  return json;
}

}  // namespace

int run_bench_step(const BenchSettings& settings) {
  BenchDevice bench(settings);
  const StepSizes sizes = step_sizes(settings, bench.kind());
  bench.measure_rates();
  BenchOutput output(settings, bench, heading(sizes));
  const auto add = [&](const PhaseTime& phase) {
    output.add(row(phase, bench.rates), json_line(phase, sizes, bench.rates));
  };
  add(time_sft(bench, sizes));
  add(time_reward(bench, sizes));
  for (const PhaseTime& phase : time_ppo(bench, sizes)) add(phase);
  output.finish();
  return 0;
}

}  // namespace tercet
