#!/usr/bin/env bash
# Makes weights/demo.h5 and weights/demo-tokenizer/ again, from nothing but this repository: text by the demo's generator, a
# byte-level BPE trained on it, a fresh model, one epoch of pretraining. An interrupted run goes on where it was.
# Usage: weights/make_demo_model.sh BUILD_FOLDER [THREADS]
set -euo pipefail
cd "$(dirname "$0")/.."

build=$1
threads=${2:-$(nproc)}
work=$build/demo-model
mkdir -p "$work"

if [ ! -f "$work/fresh.h5" ]; then
  "$build/examples/demo_dialogues" --out "$work/data" --seed 1 --pretrain 120000
  "$build/examples/demo_dialogues" --train-tokenizer "$work/data/pretrain.jsonl" --out "$work/tokenizer" --entries 1024
  "$build/tercet" init --config weights/demo-config.json --tokenizer "$work/tokenizer" --seed 1 --out "$work/fresh.h5"
fi
resume=()
[ -d "$work/pretrain/checkpoints" ] && resume=(--resume)
"$build/tercet" sft --config examples/demo/pretrain.toml --model "$work/fresh.h5" --data "$work/data/pretrain.jsonl" \
  --threads "$threads" --out "$work/pretrain" "${resume[@]}"
mkdir -p weights/demo-tokenizer
cp "$work/tokenizer/vocab.json" "$work/tokenizer/merges.txt" weights/demo-tokenizer/
cp "$work/pretrain/model.h5" weights/demo.h5
ls -l weights/demo.h5
