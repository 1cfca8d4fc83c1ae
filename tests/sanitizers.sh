#!/usr/bin/env bash
# Builds all tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs those that are not long.
# Usage: tests/sanitizers.sh JOBS
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-sanitizers
cmake -S . -B "$build" -G Ninja -DTERCET_SANITIZE=address,undefined -DTERCET_CUDA=OFF > "$build-configure.log"
cmake --build "$build" -j "${1:-2}"
ctest --test-dir "$build" -L check --output-on-failure
