#!/usr/bin/env bash
# A test binary under a tool of NVIDIA's compute-sanitizer: memcheck (bounds, misalignment, leaks), racecheck (shared
# memory), initcheck, synccheck. Long cases are left out: the tools slow kernels down ten times and more.
# Usage: tests/gpu/sanitize.sh TOOL TEST_BINARY
set -euo pipefail
PATH=$PATH:/usr/local/cuda/bin
if ! command -v compute-sanitizer > /dev/null; then
  echo "compute-sanitizer is not there: install it with the CUDA Toolkit" >&2
  exit 1
fi
exec compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 20 "$2" "--test-case-exclude=long:*"
