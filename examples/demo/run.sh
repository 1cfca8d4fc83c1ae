#!/usr/bin/env bash
# The demo: three training steps on the small model of weights/, figures before and after, answers, reports.
# Usage: examples/demo/run.sh BUILD_FOLDER [YOUR_PAIRS.jsonl.gz]
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$1
data=${2:-}
out=$build/demo
tercet=$build/tercet
seed=${SEED:-1}
start=weights/demo.h5

mkdir -p "$out"
started=$SECONDS
say() { printf '\n== %s\n' "$*"; }

if [ -z "$data" ]; then
  "$build/examples/demo_dialogues" --out "$out/data" --seed 1
  sft=(--data "$out/data/sft.jsonl" --eval-data "$out/data/eval_sft.jsonl")
  pairs=(--data "$out/data/pairs.jsonl" --eval-data "$out/data/eval_pairs.jsonl")
  prompts=(--data "$out/data/prompts.jsonl" --eval-data "$out/data/eval_prompts.jsonl")
  questions=$out/data/eval_prompts.jsonl
  fits=()
  check=(--check)
else
  # Every fifth line of the user's file is held out, 512 at most.
  mkdir -p "$out/data"
  reader=cat
  case "$data" in *.gz) reader="gzip -dc" ;; esac
  $reader "$data" | awk 'NR % 5' > "$out/data/train.jsonl"
  $reader "$data" | awk 'NR % 5 == 0' | head -n 512 > "$out/data/eval.jsonl"
  limits=(--max-length 256)
  sft=(--data "$out/data/train.jsonl" --eval-data "$out/data/eval.jsonl" "${limits[@]}")
  pairs=("${sft[@]}")
  prompts=(--data "$out/data/train.jsonl" --eval-data "$out/data/eval.jsonl" --max-prompt-tokens 192 --max-new-tokens 64)
  questions=$out/data/eval.jsonl
  fits=(--max-prompt-tokens 192)
  check=()
fi

answers() {
  "$tercet" generate --model "$1" --data "$questions" "${fits[@]}" --max-new-tokens 32 --seed 7 > "$out/answers-$2.jsonl" \
    2> "$out/generate.log" || { cat "$out/generate.log" >&2; exit 1; }
}

answers "$start" start
steps_started=$SECONDS
say "step 1 of 3: supervised fine-tuning"
"$tercet" sft --config examples/demo/sft.toml --model "$start" "${sft[@]}" --seed "$seed" --out "$out/sft" --overwrite
say "step 2 of 3: reward model"
"$tercet" reward --config examples/demo/reward.toml --model "$out/sft/model.h5" "${pairs[@]}" --seed "$seed" \
  --out "$out/reward" --overwrite
say "step 3 of 3: PPO"
"$tercet" ppo --config examples/demo/ppo.toml --actor "$out/sft/model.h5" --reward-model "$out/reward/model.h5" \
  "${prompts[@]}" --seed "$seed" --out "$out/ppo" --overwrite
steps_seconds=$((SECONDS - steps_started))

answers "$out/sft/model.h5" sft
answers "$out/ppo/model.h5" ppo
"$build/examples/demo_summary" "$out" "${check[@]}"
printf '\nThe three steps took %d s, the demo %d s. A conversation:\n' "$steps_seconds" "$((SECONDS - started))"
printf '  %s generate --model %s/ppo/model.h5 --max-new-tokens 32 --prompt "Tom likes tea. Ana likes milk. What does Tom like?"\n' "$tercet" "$out"
