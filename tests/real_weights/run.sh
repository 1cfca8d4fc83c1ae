#!/usr/bin/env bash
# Checks the weights of a Hugging Face folder of OPT (125M and 350M: everything; larger sizes: the perplexity) against the
# figures in expected.json. Usage: tests/real_weights/run.sh BUILD FOLDER [WIKITEXT-2 RAW TEST FILE] [WINDOWS]
set -euo pipefail
build=$(realpath "$1") folder=$(realpath -m "$2") text=${3:+$(realpath -m "$3")} windows=${4:-0}
cd "$(dirname "$0")/../.."

out=$build/real-weights
mkdir -p "$out"
trap 'rm -f "$out/model.h5"' EXIT
"$build/tercet" import "$folder" --template none --out "$out/model.h5" > "$out/import.log" 2>&1 ||
  { cat "$out/import.log" >&2; exit 2; }
"$build/tests/check_real_weights" --model "$out/model.h5" --expected tests/real_weights/expected.json \
  --windows "$windows" ${text:+--text "$text"}
