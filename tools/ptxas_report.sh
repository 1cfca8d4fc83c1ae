#!/usr/bin/env bash
# Registers, static shared memory, stack and spills of every kernel and architecture, against kernels/ptxas_budget.txt.
# Fails on a spill, on more than the budget, on a kernel without a budget and on a budget without a kernel. Compilers
# differ: with another release of nvcc than the budget's, spills alone fail. UPDATE=1 writes the budget again.
# Usage: tools/ptxas_report.sh BUILD_FOLDER [SOURCES], where the library tercet_cuda was built.
set -euo pipefail

build=$1
sources=${2:-$(dirname "$0")/..}
tools=$(cd "$(dirname "$0")" && pwd)
budget=$sources/kernels/ptxas_budget.txt

nvcc=$(sed -n 's/^TERCET_NVCC:[A-Z]*=//p' "$build/CMakeCache.txt")
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')

demangled=$(mktemp -d)
trap 'rm -rf "$demangled"' EXIT
for source in "$sources"/kernels/*.cu; do
  log=$build/CMakeFiles/tercet_cuda.dir/kernels/$(basename "$source").o.ptxas
  [ -f "$log" ] || { echo "$log is missing: build tercet_cuda first" >&2; exit 1; }
  c++filt < "$log" > "$demangled/$(basename "$log")"
done

if [ -n "${UPDATE:-}" ]; then
  { echo "# What make ptxas-report allows a kernel: registers, bytes of static shared memory, bytes of stack. No kernel may spill."
    echo "# nvcc $release"
    awk -v update=1 -f "$tools/ptxas_report.awk" "$demangled"/* | LC_ALL=C sort -k5 -k1,1
  } > "$budget.partial"
  mv "$budget.partial" "$budget"
  echo "wrote $budget: $(grep -vc '^#' "$budget") kernels"
fi

compare=1
if ! grep -qxF "# nvcc $release" "$budget"; then
  compare=0
  echo "registers are not compared: the budget is of $(sed -n 's/^# \(nvcc .*\)/\1/p' "$budget"), this is nvcc $release"
fi
awk -v budget="$budget" -v compare=$compare -f "$tools/ptxas_report.awk" "$budget" "$demangled"/*
