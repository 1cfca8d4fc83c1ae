#!/usr/bin/env bash
# tools/ptxas_report.sh on logs made up for it: what passes, and each thing that must fail.
set -euo pipefail
tools=$(cd "$(dirname "$0")/../../tools" && pwd)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
objects=$folder/build/CMakeFiles/tercet_cuda.dir/kernels
mkdir -p "$objects" "$folder/kernels"
touch "$folder/kernels/rows.cu"
printf '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\n' > "$folder/nvcc"
chmod +x "$folder/nvcc"
echo "TERCET_NVCC:FILEPATH=$folder/nvcc" > "$folder/build/CMakeCache.txt"

half_kernel=_ZN6tercet3gpu39_GLOBAL__N__d85400ed_7_rows_cu_6ec9b63011cast_kernelIf6__halfLb1EEEvPKT_PT0_l
plain_kernel=_ZN6tercet3gpu39_GLOBAL__N__d85400ed_7_rows_cu_6ec9b63010add_kernelEPfl

# log REGISTERS SHARED STACK SPILLED: what ptxas says of the two kernels, the first with these figures.
log() {
  cat << END
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '$half_kernel' for 'sm_90'
ptxas info    : Function properties for $half_kernel
    $3 bytes stack frame, $4 bytes spill stores, $4 bytes spill loads
ptxas info    : Used $1 registers, used 1 barriers, $3 bytes cumulative stack size, $2 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 3.415 ms
ptxas info    : Compiling entry function '$plain_kernel' for 'sm_80'
ptxas info    : Function properties for $plain_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 376 bytes cmem[0]
ptxas info    : Compile time = 1.2 ms
END
}

# expect pass|fail "what the report says" FIGURES...
expect() {
  local wanted=$1 text=$2 verdict=pass
  shift 2
  log "$@" > "$objects/rows.cu.o.ptxas"
  bash "$tools/ptxas_report.sh" "$folder/build" "$folder" > "$folder/report" 2>&1 || verdict=fail
  if [ "$verdict" != "$wanted" ] || ! grep -qF -- "$text" "$folder/report"; then
    echo "expected: $wanted with \"$text\"; the report ($verdict):"
    cat "$folder/report"
    exit 1
  fi
}

budget() {
  { echo "# nvcc ${2:-13.0}"
    echo "$1"
    echo "sm_80 8 0 0  rows: add_kernel"
  } > "$folder/kernels/ptxas_budget.txt"
}

budget "sm_90 40 1024 0  rows: cast_kernel<float, half, true>"
expect pass "2 kernels, 0 faults" 40 1024 0 0
expect pass "tightens it" 39 1024 0 0
expect fail "rows: cast_kernel<float, half, true> on sm_90: 24 bytes of spills" 40 1024 0 12
expect fail "registers 41, budget 40" 41 1024 0 0
expect fail "shared bytes 1040, budget 1024" 40 1040 0 0
expect fail "stack bytes 16, budget 0" 40 1024 16 0
budget "sm_80 40 1024 0  rows: cast_kernel<float, half, true>"
expect fail "rows: cast_kernel<float, half, true> on sm_90 has no budget" 40 1024 0 0
expect fail "sm_80 rows: cast_kernel<float, half, true> has a budget and does not exist" 40 1024 0 0
budget "sm_90 40 1024 0  rows: cast_kernel<float, half, true>
sm_100 40 1024 0  rows: cast_kernel<float, half, true>"
expect pass "2 kernels, 0 faults" 40 1024 0 0  # no code was asked for sm_100
budget "sm_90 40 1024 0  rows: cast_kernel<float, half, true>" 12.4
expect pass "registers are not compared: the budget is of nvcc 12.4, this is nvcc 13.0" 41 1024 0 0
expect fail "of spills" 41 1024 0 12

# A budget that is written again is kept.
UPDATE=1 expect pass "wrote" 77 2048 0 0
expect pass "2 kernels, 0 faults" 77 2048 0 0
expect fail "registers 78, budget 77" 78 2048 0 0

# Neither a log that is not there nor one without kernels passes.
rm "$objects/rows.cu.o.ptxas"
if bash "$tools/ptxas_report.sh" "$folder/build" "$folder" > "$folder/report" 2>&1; then
  echo "a report without logs passes"
  exit 1
fi
grep -q "build tercet_cuda first" "$folder/report"
: > "$objects/rows.cu.o.ptxas"
if bash "$tools/ptxas_report.sh" "$folder/build" "$folder" > "$folder/report" 2>&1; then
  echo "a report of nothing passes"
  exit 1
fi
echo "all as expected"
