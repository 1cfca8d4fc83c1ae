#!/usr/bin/env bash
# The names of all CUDA kernels in kernels/, those that follow __global__, one a line.
set -euo pipefail
cd "$(dirname "$0")/.."
cat kernels/*.cu kernels/*.cuh | tr '\n' ' ' | grep -oE '__global__ void +(__launch_bounds__\([^)]*\) +)?[a-z0-9_]+' |
  sed 's/.* //' | LC_ALL=C sort -u
