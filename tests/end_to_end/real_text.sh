#!/usr/bin/env bash
# The three steps on real dialogues (Anthropic's hh-rlhf, harmless-base test) with OPT's own tokenizer and a fresh small model. A
# test of the pipeline on real text, not of quality: a model of this size that has read 2,300 dialogues knows next to nothing, and
# the script says where it does not beat its controls. Usage: tests/end_to_end/real_text.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$1
shared=${TERCET_SHARED_DATA:-../shared/data}
pairs=$shared/hh-harmless-base-test.jsonl.gz
if [ ! -f "$pairs" ]; then
  echo "skipped: $pairs is not there (set TERCET_SHARED_DATA)"
  exit 77
fi
out=$build/real-text
tercet=$build/tercet
rm -rf "$out"
mkdir -p "$out/tokenizer"
cp "$shared/metaseq-gpt2-vocab.json" "$out/tokenizer/vocab.json"
cp "$shared/metaseq-gpt2-merges.txt" "$out/tokenizer/merges.txt"
cat > "$out/config.json" <<'J'
{"model_type": "opt", "vocab_size": 50272, "hidden_size": 64, "num_hidden_layers": 2, "ffn_dim": 256,
 "num_attention_heads": 2, "max_position_embeddings": 1024, "init_std": 0.02}
J
gzip -dc "$pairs" > "$out/all.jsonl"
awk 'NR % 5' "$out/all.jsonl" > "$out/train.jsonl"
awk 'NR % 5 == 0' "$out/all.jsonl" > "$out/held-out.jsonl"

# The last value of a metric in a run's metrics.jsonl; the first one with a third argument.
metric() {
  local lines
  lines=$(sed -n "s|.*\"$2\":\([-0-9.e+]*\).*|\1|p" "$1/metrics.jsonl")
  if [ -n "${3:-}" ]; then head -n 1 <<< "$lines"; else tail -n 1 <<< "$lines"; fi
}
run() { "$tercet" "$@" > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }; }

run init --config "$out/config.json" --tokenizer "$out/tokenizer" --seed 1 --out "$out/fresh.h5"
run sft --model "$out/fresh.h5" --data "$out/train.jsonl" --eval-data "$out/held-out.jsonl" --loss-on all \
  --max-length 512 --batch-size 32 --epochs 2 --lr 3e-3 --out "$out/sft"
first=$(metric "$out/sft" eval/ppl first)
last=$(metric "$out/sft" eval/ppl)
echo "SFT: held-out perplexity $first -> $last (vocabulary 50272)"
awk -v first="$first" -v last="$last" 'BEGIN { exit !(first > 40000 && first < 60000 && last < 2000) }' ||
  { echo "FAILED: perplexity should start near the vocabulary size and fall below 2000"; exit 1; }

reward_model() {  # fold, run folder, flags
  awk -v fold="$1" 'NR % 5 != fold' "$out/all.jsonl" > "$out/fold-train.jsonl"
  awk -v fold="$1" 'NR % 5 == fold' "$out/all.jsonl" > "$out/fold-test.jsonl"
  run reward --model "$out/sft/model.h5" --data "$out/fold-train.jsonl" --eval-data "$out/fold-test.jsonl" \
    --max-length 512 --batch-size 32 --epochs 1 --lr 1e-3 --out "$2" "${@:3}"
}
for kind in labels shuffled; do
  flags=()
  [ "$kind" = shuffled ] && flags=(--shuffle-labels)
  for fold in 0 1 2 3 4; do
    reward_model "$fold" "$out/reward-$kind-$fold" "${flags[@]}"
    echo "$(metric "$out/reward-$kind-$fold" eval/accuracy) $(metric "$out/reward-$kind-$fold" eval/pairs)" \
      "$(metric "$out/reward-$kind-$fold" eval/shorter_wins)"
  done > "$out/folds-$kind.txt"
done
report() {  # file, label
  awk -v label="$2" '{ right += $1 * $2; pairs += $2; shorter += $3 * $2 }
    END { p = right / pairs; n = pairs; z = 1.96; d = 1 + z * z / n; c = (p + z * z / (2 * n)) / d
      h = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
      printf "reward model, 5 folds, %s: accuracy %.3f [%.3f, %.3f] on %d pairs; \"the shorter wins\" %.3f\n",
        label, p, c - h, c + h, n, shorter / pairs
      print c - h, shorter / pairs > "'"$out"'/interval.txt" }' "$1"
}
report "$out/folds-shuffled.txt" "shuffled labels (control)"
report "$out/folds-labels.txt" "labels"
awk '{ print ($1 > $2 ? "The reward model beats" : "The reward model does NOT beat") " the rule \"the shorter wins\"." }' \
  "$out/interval.txt"

run ppo --actor "$out/sft/model.h5" --reward-model "$out/reward-labels-0/model.h5" --data "$out/train.jsonl" \
  --eval-data "$out/held-out.jsonl" --max-prompt-tokens 128 --max-new-tokens 32 --rollouts 32 --steps 8 --ppo-epochs 2 \
  --lr 3e-5 --out "$out/ppo"
for name in score_normalized win_rate kl_seq len_mean eos_rate; do
  echo "PPO: held-out $name $(metric "$out/ppo" "eval/$name" first) -> $(metric "$out/ppo" "eval/$name")"
done
echo "This is a test of the pipeline on real text; the figures say nothing about quality at this size."
