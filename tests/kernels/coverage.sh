#!/usr/bin/env bash
# Every kernel of kernels/*.cu, in each of its instantiations, must have been run by the kernel tests.
# Usage: tests/kernels/coverage.sh EMULATOR_LIBRARY LAUNCHES, a file that the library wrote (kernels/emulator/launch_log.h).
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
library=$1
launches=$2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

bash tools/kernel_names.sh > "$folder/names"

# "address name instantiation" of each function of the library that is called so.
nm -C --defined-only "$library" | sed -nE 's/^([0-9a-f]+) [tTwW] (.*)$/\1 \2/p' | grep -vE '\[clone|\{lambda' |
  sed -E 's/\(anonymous namespace\):://g; s/tercet::(gpu::)?//g; s/ void / /; s/BFloat16/bf16/g; s/Float16/half/g' |
  awk 'NR == FNR { names[$1]; next }
       { name = $2; sub(/[<(].*/, "", name)
         if (name in names) { address = $1; sub(/^[^ ]* /, ""); sub(/\([^(]*$/, ""); print address, name, $0 } }' \
    "$folder/names" - | sort > "$folder/kernels"

cut -d' ' -f2 "$folder/kernels" | sort -u | comm -23 "$folder/names" - | sed 's/$/: no launcher uses it/' > "$folder/faults"
cut -d' ' -f1 "$launches" | sort -u | join -v1 "$folder/kernels" - | cut -d' ' -f3- |
  sed 's/$/: no test runs it/' | sort -u >> "$folder/faults"

cat "$folder/faults"
echo "$(wc -l < "$folder/kernels") kernels of $(wc -l < "$folder/names") names, $(wc -l < "$folder/faults") of them not tested"
[ -s "$folder/names" ] && [ -s "$folder/kernels" ] && [ ! -s "$folder/faults" ]
