// Every command.
#include "app/flags.h"
#include "train/steps.h"

namespace tercet {
namespace {

template <class S>
Command command(std::string name, std::string summary, std::string usage, int (*run)(const S&, const Json&)) {
  return {std::move(name), std::move(summary), std::move(usage), S{},
          [run](const Settings& settings, const Json& json) { return run(std::get<S>(settings), json); }};
}

template <class S>
Command command(std::string name, std::string summary, std::string usage, int (*run)(const S&),
                std::string example = "") {
  return {std::move(name),
          std::move(summary),
          std::move(usage),
          S{},
          [run](const Settings& settings, const Json&) { return run(std::get<S>(settings)); },
          std::move(example)};
}

constexpr const char* kPipelineExample = R"(pipeline.toml:
  seed = 1                        # before the first table: for every step that has such a flag
  data = "pairs.jsonl"
  split = "2,4,4"

  [model]
  sft = "opt-125m.h5"             # where sft starts; reward starts from its result unless it has a model here

  [sft]
  epochs = 1

  [reward]
  lr = 1e-5

  [ppo]
  steps = 200
  rollouts = 64

  [eval]                          # both language models answer these prompts, the reward model scores
  data = "held-out.jsonl"
)";

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      command("init", "make a fresh model", "--config opt-125m|FILE.json --tokenizer FOLDER --out M.h5", run_init),
      command("import", "read a Hugging Face OPT folder into a model file", "FOLDER --out M.h5", run_import),
      command("export", "write a model file as a Hugging Face folder, which transformers loads", "M.h5 --out FOLDER",
              run_export),
      command("info", "show what a model file holds", "M.h5 [--json]", run_info),
      command("tokenize", "text to ids and back: JSON lines on stdin to JSON lines on stdout",
              "--model M.h5 [--decode]", run_tokenize),
      command("score", "log-probabilities or rewards of records, a JSON line each", "--model M.h5 --data F.jsonl...",
              run_score),
      command("eval", "loss and perplexity, accuracy of a reward model, or two models compared",
              "--model M.h5 --data F.jsonl...", run_eval),
      command("sft", "step 1: supervised fine-tuning", "--model M.h5 --data F.jsonl... --out RUN", run_sft),
      command("reward", "step 2: train a reward model on preference pairs", "--model M.h5 --data F.jsonl... --out RUN",
              run_reward),
      command("ppo", "step 3: optimise a model against a reward model",
              "--actor A.h5 --reward-model R.h5|--reward-rule NAME --data F.jsonl... --out RUN", run_ppo),
      command("rlhf", "all three steps from one file, and both models compared", "--config PIPELINE.toml --out RUN",
              run_rlhf, kPipelineExample),
      command("generate", "responses to prompts, a JSON line each", "--model M.h5 --prompt TEXT | --data F.jsonl...",
              run_generate),
      command("chat", "a dialogue with a model", "--model M.h5", run_chat),
      command("compare", "runs side by side: figures, curves, settings that differ", "RUN... [--out FILE.html]",
              run_compare),
      command("bench", "time single ops, or whole training steps, against what the device reaches", "kernels|step",
              run_bench),
  };
  return table;
}

}  // namespace tercet
