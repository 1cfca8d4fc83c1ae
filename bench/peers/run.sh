#!/usr/bin/env bash
# tercet beside PyTorch + transformers at OPT-125M's shape, fp32, on this machine's cores: the same random weights, the same texts,
# in turns. Prints a table of medians and ratios. PYTHON needs torch and transformers; tercet needs neither.
# Usage: bench/peers/run.sh BUILD_FOLDER PYTHON [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
python=$2
rounds=${3:-3}
work=$build/peers
peers=bench/peers
mkdir -p "$work"
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=$(nproc)

# Sixteen lengths at the middle of each sixteenth of the lengths of hh-rlhf's harmless test dialogues in OPT's tokens.
mixed=29,39,50,64,77,92,107,122,139,157,175,196,228,266,323,421
equal=256,256,256,256,256,256,256,256
[ -f "$work/model.h5" ] || "$build/tercet" init --config opt-125m --tokenizer weights/demo-tokenizer --out "$work/model.h5" > /dev/null 2>&1
[ -d "$work/hf" ] || "$build/tercet" export "$work/model.h5" --out "$work/hf" > /dev/null 2>&1
"$python" $peers/texts.py weights/demo-tokenizer "$mixed" 0 "$work/mixed.jsonl"
"$python" $peers/texts.py weights/demo-tokenizer "$equal" 128 "$work/equal.jsonl"

sft() {  # name, data, records, micro-batch of the peer, response|all
  local name=$1 data=$work/$2.jsonl steps=4
  for round in $(seq "$rounds"); do
    rm -rf "$work/run"
    "$python" $peers/measure.py "$work/$name-tercet-$round.json" "$build/tercet" sft --model "$work/model.h5" --data "$data" \
      --template none --loss-on "$5" --batch-size "$3" --steps $steps --schedule constant --warmup 0 --lr 1e-5 --out "$work/run"
    "$python" $peers/torch_peer.py sft "$work/hf" "$data" $steps "$4" "$5" > "$work/$name-peer-$round.json"
    cp "$work/run/timings.jsonl" "$work/$name-tercet-$round-timings.jsonl"
    cp "$work/run/metrics.jsonl" "$work/$name-tercet-$round-metrics.jsonl"
  done
}

# 64 tokens for each of 16 prompts; what one token takes, with the start of the program, is taken off.
generation() {
  for round in $(seq "$rounds"); do
    for tokens in 1 65; do
      "$python" $peers/measure.py "$work/generate-tercet-$round-$tokens.json" "$build/tercet" generate --model "$work/model.h5" \
        --data "$work/mixed.jsonl" --template none --temperature 0 --max-new-tokens $tokens
      cp "$work/generate-tercet-$round-$tokens.json.out" "$work/generate-tercet-$round-$tokens.jsonl"
      "$python" $peers/torch_peer.py generate "$work/hf" "$work/mixed.jsonl" $tokens > "$work/generate-peer-$round-$tokens.json"
    done
  done
}

sft mixed mixed 16 4 response
sft equal-response equal 8 4 response
sft equal-all equal 8 4 all
generation
"$python" $peers/table.py "$work" "$rounds"
