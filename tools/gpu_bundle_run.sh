#!/usr/bin/env bash
# Runs what tools/gpu_bundle.sh collected, on a machine with a GPU and no compilers or packages: register layouts, kernels,
# whole models, training, compute-sanitizer, benches, a profile. Each step leaves a log; what a step lacks is said, and the
# others go on. Usage: run.sh [RESULTS_FOLDER]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-$here/results}
mkdir -p "$results"
results=$(cd "$results" && pwd)
parts=$here/parts
mkdir -p "$parts" && tar -C "$parts" -xzf "$here/bundle.tar.gz" && . "$parts/paths" || exit 1
binaries=$parts/$binaries
export LD_LIBRARY_PATH=$parts/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin
export TERCET_TEST_DEVICES=cuda

if ! "$binaries/tests/device_probe" cuda > "$results/gpu.txt"; then
  cat "$results/gpu.txt"
  exit 1
fi
cat "$results/gpu.txt"
nvidia-smi >> "$results/gpu.txt" 2>&1

# The paths of the build, unless this is the machine of the build.
link() {
  [ -e "$1" ] || { mkdir -p "$(dirname "$1")" && ln -s "$2" "$1"; }
}
link "$source" "$parts/source" || exit 1
link "$build" "$binaries" || exit 1

# cuBLASLt is not in the bundle (half a gigabyte): the CUDA Toolkit brings it, and so do frameworks.
if ! ldconfig -p 2> /dev/null | grep -qE 'libcublasLt\.so\.1[23]'; then
  found=$(find /usr /opt /root /home -name 'libcublasLt.so.1[23]' 2> /dev/null | head -n 1)
  [ -n "$found" ] && export TERCET_CUBLASLT_LIBRARY=$found
  echo "cuBLASLt: ${found:-not found, matrix products will fail}"
fi

failed=0
number=0
# step NAME COMMAND...: runs the command and keeps what it prints in NN-NAME.log.
step() {
  local name=$1 started=$SECONDS
  shift
  number=$((number + 1))
  local log
  log=$results/$(printf '%02d' $number)-$name.log
  if "$@" > "$log" 2>&1; then
    echo "passed  $name ($((SECONDS - started)) s)"
  else
    echo "FAILED  $name ($((SECONDS - started)) s): $log"
    tail -n 15 "$log" | sed 's/^/        /'
    failed=$((failed + 1))
  fi
}
# step_with TOOL NAME COMMAND...: the same where the tool is there.
step_with() {
  local tool=$1
  shift
  if command -v "$tool" > /dev/null; then step "$@"; else echo "skipped $1: $tool is not there"; fi
}

cd "$parts/source" || exit 1
step layouts "$binaries/tests/test_layouts_cuda"
step kernels "$binaries/tests/test_kernels" "--test-case-exclude=long:*"
for folder in train rollout app; do
  step "$folder" "$binaries/tests/test_$folder" "--source-file=*/gpu_*"
done
for tool in memcheck racecheck; do
  step_with compute-sanitizer "$tool" bash tests/gpu/sanitize.sh "$tool" "$binaries/tests/test_kernels"
done
step bench-kernels "$binaries/tercet" bench kernels --device cuda --out "$results/bench-kernels.jsonl"
step bench-step "$binaries/tercet" bench step --device cuda --out "$results/bench-step.jsonl"
step_with nsys profile bash tools/profile.sh "$binaries"
[ -d "$binaries/profile" ] && cp "$binaries"/profile/*.txt "$binaries"/profile/*.nsys-rep "$results" 2> /dev/null
echo "$number steps, $failed failed; logs and tables: $results"
[ "$failed" -eq 0 ]
