#!/usr/bin/env bash
# Nsight Compute over tercet's own kernels in the cases of `tercet bench kernels` whose names contain PATTERN, at the shapes
# of OPT-1.3B. docs/profiling.md tells which counters to read. Usage: tools/profile_kernel.sh BUILD_FOLDER PATTERN
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/cuda/bin
build=$1
pattern=$2
name=${pattern//[^A-Za-z0-9_.]/-}
out=$build/profile
mkdir -p "$out"

names=$(bash tools/kernel_names.sh | paste -sd '|')
ncu --set full --import-source on --clock-control none --kernel-name-base function --kernel-name "regex:^($names)\$" \
  --launch-count 16 --force-overwrite --export "$out/$name" \
  "$build/tercet" bench kernels --device cuda --model-size opt-1.3b --ops "$pattern" --repeats 1
ncu --import "$out/$name.ncu-rep" --page details > "$out/$name-kernels.txt"
echo "report: $out/$name.ncu-rep (ncu-ui); as text: $out/$name-kernels.txt"
