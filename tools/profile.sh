#!/usr/bin/env bash
# Nsight Systems over a short sft and ppo of the demo model, and over the steps of OPT-1.3B with a critic of 350M, with the
# NVTX ranges of phases and ops. docs/profiling.md tells how to read them. Usage: tools/profile.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/cuda/bin
build=$1
tercet=$build/tercet
out=$build/profile
mkdir -p "$out"

# profile NAME ARGUMENTS...: runs tercet under nsys and prints the time in each range and kernel.
profile() {
  local name=$1
  shift
  echo "== $name: tercet $*"
  nsys profile --trace cuda,nvtx,cublas --cuda-graph-trace node --force-overwrite true --output "$out/$name" \
    "$tercet" "$@" > "$out/$name.log" 2>&1 || { cat "$out/$name.log" >&2; exit 1; }
  nsys stats --force-export true --report nvtx_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum "$out/$name.nsys-rep" \
    > "$out/$name.txt"
  head -n 60 "$out/$name.txt"
}

"$build/examples/demo_dialogues" --out "$out/data" --seed 1
short=(--device cuda --seed 1 --overwrite)
profile sft sft --config examples/demo/sft.toml --model weights/demo.h5 --data "$out/data/sft.jsonl" --steps 20 \
  "${short[@]}" --out "$out/run-sft"
"$tercet" reward --config examples/demo/reward.toml --model "$out/run-sft/model.h5" --data "$out/data/pairs.jsonl" \
  --steps 20 "${short[@]}" --out "$out/run-reward"
profile ppo ppo --config examples/demo/ppo.toml --actor "$out/run-sft/model.h5" --reward-model "$out/run-reward/model.h5" \
  --data "$out/data/prompts.jsonl" --steps 3 "${short[@]}" --out "$out/run-ppo"
profile step bench step --device cuda --steps 1
echo "timelines: $out/{sft,ppo,step}.nsys-rep (nsys-ui); tables: $out/*.txt"
