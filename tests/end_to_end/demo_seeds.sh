#!/usr/bin/env bash
# The demo's claims over three seeds: reward accuracy, PPO's gain, KL, length and code-checked rates on held-out prompts; and that
# PPO against a reward model of shuffled labels improves nothing. Usage: tests/end_to_end/demo_seeds.sh BUILD_FOLDER [SEEDS]
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$1
seeds=${2:-"1 2 3"}
tercet=$build/tercet
failures=0

metric() {  # run folder, name, head or tail
  sed -n "s|.*\"$2\":\([-0-9.e+]*\).*|\1|p" "$1/metrics.jsonl" | "$3" -n 1
}
rate() {  # answers file, "correct" or "courteous"
  "$build/examples/demo_dialogues" --check "$1" | sed -n "s|.*\"$2\": *\([-0-9.e+]*\).*|\1|p"
}
expect() {  # description, awk condition
  if awk "BEGIN { exit !($2) }"; then
    echo "  holds   $1"
  else
    echo "  FAILED  $1: $2"
    failures=$((failures + 1))
  fi
}

for seed in $seeds; do
  echo "seed $seed"
  SEED=$seed bash examples/demo/run.sh "$build" > "$build/demo-seed-$seed.txt" 2>&1 || { cat "$build/demo-seed-$seed.txt"; exit 1; }
  demo=$build/demo
  prompts=$(wc -l < "$demo/data/eval_prompts.jsonl")
  expect "at least 512 held-out prompts" "$prompts >= 512"
  expect "no held-out prompt is a training prompt" \
    "$(cat "$demo"/data/{sft,pairs,prompts}.jsonl | grep -cFf <(sed 's/^{//; s/}$//' "$demo/data/eval_prompts.jsonl") || true) == 0"
  expect "reward accuracy at least 0.85" "$(metric "$demo/reward" eval/accuracy tail) >= 0.85"
  expect "\"the shorter wins\" within 0.50 +- 0.03" \
    "$(metric "$demo/reward" eval/shorter_wins tail) >= 0.47 && $(metric "$demo/reward" eval/shorter_wins tail) <= 0.53"
  before=$(metric "$demo/ppo" eval/score head)
  after=$(metric "$demo/ppo" eval/score tail)
  sd=$(metric "$demo/ppo" eval/score_std head)
  expect "PPO raises the mean score by one standard deviation of the SFT scores" "$after - $before >= $sd"
  expect "paired win rate at least 0.70" "$(metric "$demo/ppo" eval/win_rate tail) >= 0.70"
  kl=$(metric "$demo/ppo" eval/kl_seq tail)
  expect "KL between 0.3 and 15 nats per sequence" "$kl >= 0.3 && $kl <= 15"
  expect "EOS rate at least 0.95" "$(metric "$demo/ppo" eval/eos_rate tail) >= 0.95"
  length=$(metric "$demo/ppo" eval/len_mean head)
  expect "length within 30 %" "$(metric "$demo/ppo" eval/len_mean tail) / $length >= 0.7 && $(metric "$demo/ppo" eval/len_mean tail) / $length <= 1.3"
  courteous=$(rate "$demo/answers-sft.jsonl" courteous)
  correct=$(rate "$demo/answers-sft.jsonl" correct)
  expect "courtesy rises by at least 0.3" "$(rate "$demo/answers-ppo.jsonl" courteous) - $courteous >= 0.3"
  expect "correctness does not fall" "$(rate "$demo/answers-ppo.jsonl" correct) >= $correct"

  # The control: the same with labels that mean nothing, in the unit of the true reward model: its scores are not divided by
  # their own spread, which would blow chance up to the size of a reward, and what is weighed against them (the KL coefficient, the
  # penalty of an answer without end) is multiplied by the true model's spread. Chance moves each rate by about 0.02 on 512
  # prompts (one standard error), and a difference of two by 0.03.
  unit=$("$tercet" info --json "$demo/reward/model.h5" | sed 's|.*"score":{[^}]*"sd":\([-0-9.e+]*\).*|\1|')
  kl_coef=$(sed -n 's|^kl-coef = ||p' examples/demo/ppo.toml)
  "$tercet" reward --config examples/demo/reward.toml --model "$demo/sft/model.h5" --data "$demo/data/pairs.jsonl" \
    --eval-data "$demo/data/eval_pairs.jsonl" --shuffle-labels --seed "$seed" --out "$demo/reward-shuffled" --overwrite 2> /dev/null
  "$tercet" ppo --config examples/demo/ppo.toml --actor "$demo/sft/model.h5" \
    --reward-model "$demo/reward-shuffled/model.h5" --data "$demo/data/prompts.jsonl" --seed "$seed" --normalize-reward off \
    --kl-coef "$(awk "BEGIN { print $unit * $kl_coef }")" --missing-eos-penalty "$unit" \
    --out "$demo/ppo-shuffled" --overwrite 2> /dev/null
  "$tercet" generate --model "$demo/ppo-shuffled/model.h5" --data "$demo/data/eval_prompts.jsonl" --max-new-tokens 32 \
    --seed 7 > "$demo/answers-shuffled.jsonl" 2> /dev/null
  expect "shuffled labels do not raise correctness" "$(rate "$demo/answers-shuffled.jsonl" correct) - $correct < 0.06"
  expect "shuffled labels do not raise courtesy" "$(rate "$demo/answers-shuffled.jsonl" courteous) - $courteous < 0.06"
done
[ "$failures" -eq 0 ] && echo "all hold" || { echo "$failures do not hold"; exit 1; }
