#!/usr/bin/env bash
# Runs a command where there is a usable GPU; elsewhere says why not and exits with 77, which shows as skipped.
# Usage: with_gpu.sh DEVICE_PROBE COMMAND...
set -euo pipefail
"$1" cuda
shift
exec "$@"
