#include "app/checks.h"

#include <filesystem>

#include "base/error.h"
#include "data/dataset.h"
#include "data/records.h"

namespace tercet {
namespace {

void settle_dtype(const std::string& device, std::string& dtype) {
  dtype = dtype_name(checked_dtype(*open_device(device), dtype));
}

void check_data(const std::vector<std::string>& paths, const std::string& fields) {
  if (!fields.empty()) parse_field_names(fields);
  for (const std::string& path : paths) parse_data_path(path);
}

// --overwrite deletes what the run wrote: none of the inputs may be among it.
void check_overwrite(const Command& command, const Settings& settings, const std::string& out) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::weakly_canonical(out);
  for (const Flag& flag : flags()) {
    if (!takes(command, flag) || !flag.is_path() || flag.name == "out") continue;
    const Json value = get_flag(settings, flag);
    for (const Json& item : value.is_array() ? value.as_array() : Json::Array{value}) {
      if (item.as_string().empty()) continue;
      const std::string path =
          flag.value.starts_with("DATA") ? parse_data_path(item.as_string()).path : item.as_string();
      const fs::path relative = fs::weakly_canonical(path).lexically_relative(folder);
      if (!relative.empty() && *relative.begin() != "..")
        fail_input(fmt::format("--overwrite would delete it with the run in {}", out),
                   fmt::format("--{} {}", flag.name, path), "copy it elsewhere or write to another folder");
    }
  }
}

void check_common(const Command& command, const Settings& settings, CommonSettings& common) {
  settle_dtype(common.device, common.dtype);
  check_data(common.data, common.fields);
  check_data(common.eval_data, "");
  if (!common.split.empty()) parse_split(common.split);
  if (common.resume && common.overwrite)
    fail_input("--resume goes on with the run that --overwrite deletes", "", "give one of them");
  if (common.overwrite) check_overwrite(command, settings, common.out);
}

void check(const Command& command, const Settings& settings, PpoSettings& ppo) {
  check_common(command, settings, ppo);
  if (ppo.reward_model.empty() == ppo.reward_rule.empty())
    fail_input("responses are scored by a reward model or by a rule", "--reward-model, --reward-rule",
               "give one of them");
  if (ppo.minibatches > ppo.rollouts)
    fail_input(fmt::format("{} responses cannot be cut into {} minibatches", ppo.rollouts, ppo.minibatches),
               "--minibatches", "give at most --rollouts");
  if (ppo.ptx_coef > 0 && ppo.ptx_data.empty()) fail_input("there is no --ptx-data", "--ptx-coef", "give both or none");
  if (ppo.ptx_coef == 0 && !ppo.ptx_data.empty()) fail_input("--ptx-coef is 0", "--ptx-data", "give both or none");
  check_data(ppo.ptx_data, "");
}
void check(const Command& command, const Settings& settings, SftSettings& sft) { check_common(command, settings, sft); }
void check(const Command& command, const Settings& settings, RewardSettings& reward) {
  check_common(command, settings, reward);
}
void check(const Command&, const Settings&, ScoreSettings& score) {
  settle_dtype(score.device, score.dtype);
  check_data(score.data, score.fields);
}
void check(const Command&, const Settings&, EvalSettings& eval) {
  settle_dtype(eval.device, eval.dtype);
  check_data(eval.data, eval.fields);
  if (eval.baseline.empty() && eval.reward_model.empty() && eval.reward_rule.empty()) return;
  if (eval.baseline.empty() || eval.reward_model.empty() == eval.reward_rule.empty())
    fail_input("a comparison needs --baseline and either --reward-model or --reward-rule", "", "give both or none");
}
void check(const Command&, const Settings&, GenerateSettings& generate) {
  settle_dtype(generate.device, generate.dtype);
  check_data(generate.data, generate.fields);
  if (generate.prompt.empty() == generate.data.empty())
    fail_input("generate answers one --prompt or the records of --data", "", "give one of them");
}
void check(const Command&, const Settings&, const CompareSettings&) {}
void check(const Command&, const Settings&, ChatSettings& chat) { settle_dtype(chat.device, chat.dtype); }
// Sizes of 0 and empty names stand for flags that are not given.
void check(const Command&, const Settings&, BenchSettings& bench) {
  settle_dtype(bench.device, bench.dtype);
  const bool step = bench.what == "step";
  const auto refuse = [&](bool given, const char* flag) {
    if (given) fail_input(fmt::format("it belongs to bench {}", step ? "kernels" : "step"), flag, "leave the flag out");
  };
  refuse(step && !bench.ops.empty(), "--ops");
  refuse(step && bench.repeats > 0, "--repeats");
  refuse(!step && !bench.critic_size.empty(), "--critic-size");
  refuse(!step && bench.steps > 0, "--steps");
  refuse(!step && bench.batch_size > 0, "--batch-size");
  refuse(!step && bench.prompt_tokens > 0, "--prompt-tokens");
  refuse(!step && bench.new_tokens > 0, "--new-tokens");
}
void check(const Command&, const Settings&, const RlhfSettings&) {}
void check(const Command&, const Settings&, const InitSettings&) {}
void check(const Command&, const Settings&, const ImportSettings&) {}
void check(const Command&, const Settings&, const ExportSettings&) {}
void check(const Command&, const Settings&, const InfoSettings&) {}
void check(const Command&, const Settings&, const TokenizeSettings&) {}

}  // namespace

void check_settings(const Command& command, Settings& settings) {
  std::visit([&](auto& present) { check(command, settings, present); }, settings);
}

}  // namespace tercet
