#!/usr/bin/env bash
# clang-format and clang-tidy over the sources. Usage: tools/lint.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."

bash tools/install_packages.sh clang-format clang-tidy
mapfile -t sources < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
clang-format --dry-run --Werror "${sources[@]}"
mapfile -t units < <(git ls-files 'csrc/*.cpp' 'kernels/*.cpp')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p "$1"
