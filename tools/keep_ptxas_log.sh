#!/usr/bin/env bash
# A compiler launcher: runs nvcc (given -Xptxas=-v) and keeps what ptxas says of the kernels beside the object file, as
# OBJECT.ptxas, for tools/ptxas_report.sh. Everything else that the compiler says is passed on.
set -uo pipefail

object=
for ((i = 1; i < $#; ++i)); do
  [ "${!i}" = -o ] && next=$((i + 1)) && object=${!next}
done
[ -n "$object" ] || exec "$@"

"$@" 2> "$object.ptxas"
status=$?
grep -vE '^ptxas info |bytes stack frame' "$object.ptxas" >&2
exit $status
