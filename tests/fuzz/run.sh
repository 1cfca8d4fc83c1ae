#!/usr/bin/env bash
# Builds the fuzzers of the readers with clang and runs each on its corpus. A finding is kept in build-fuzz/findings.
# Usage: tests/fuzz/run.sh JOBS SECONDS [FUZZER...]; CLANG=clang++-16 takes another clang than 14, and KEEP=1 keeps in
# build-fuzz/new the inputs that reached new code, from which the next run goes on.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-2} seconds=${2:-30}
shift $(($# < 2 ? $# : 2))
fuzzers=("$@")
[ ${#fuzzers[@]} -gt 0 ] || fuzzers=(safetensors torch_zip hdf5_file records tokenizer_json toml)

clang=${CLANG:-clang++-14}
command -v "$clang" > /dev/null || bash tools/install_packages.sh clang-14 libclang-rt-14-dev
build=build-fuzz
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DTERCET_FUZZ=ON -DTERCET_TESTS=OFF -DTERCET_CUDA=OFF \
  > "$build-configure.log" || { cat "$build-configure.log"; exit 1; }
cmake --build "$build" -j "$jobs" --target fuzzers

corpora=$PWD/tests/fuzz/corpus
mkdir -p "$build/findings" "$build/new"
cd "$build"
export ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=print_suppressions=0:suppressions=$PWD/../tests/fuzz/lsan.supp
for fuzzer in "${fuzzers[@]}"; do
  echo "fuzzing $fuzzer for $seconds s"
  log=$fuzzer.log
  mkdir -p "new/$fuzzer"
  dictionary=$corpora/$fuzzer.dict
  tests/fuzz/"fuzz_$fuzzer" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=512 \
    -max_len=16384 -artifact_prefix="findings/$fuzzer-" -print_final_stats=1 \
    $([ -f "$dictionary" ] && echo "-dict=$dictionary") "new/$fuzzer" "$corpora/$fuzzer" > "$log" 2>&1 ||
    { tail -n 60 "$log"; echo "$fuzzer: a finding, see $build/$log and $build/findings" >&2; exit 1; }
  grep -E "^#[0-9]+.*DONE|number_of_executed_units|average_exec_per_sec" "$log"
  [ -n "${KEEP:-}" ] || rm -r "new/$fuzzer"
done
