#!/usr/bin/env bash
# Fails, and says what is missing, unless this machine has all of the named: tools of the CUDA Toolkit and of Nsight, and
# `gpu`, an NVIDIA GPU. Usage: tools/require.sh NAME...
set -euo pipefail
PATH=$PATH:/usr/local/cuda/bin

missing=()
for name in "$@"; do
  case $name in
    gpu)
      compgen -G "/dev/nvidia[0-9]*" > /dev/null || [ -e /dev/dxg ] ||
        missing+=("an NVIDIA GPU with its driver (nvidia-smi must list it)")
      ;;
    nsys) command -v nsys > /dev/null || missing+=("nsys (NVIDIA's package nsight-systems)") ;;
    ncu) command -v ncu > /dev/null || missing+=("ncu (NVIDIA's package nsight-compute)") ;;
    *) command -v "$name" > /dev/null || missing+=("$name (CUDA Toolkit; on the PATH or in /usr/local/cuda/bin)") ;;
  esac
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "This machine lacks:" >&2
printf '  %s\n' "${missing[@]}" >&2
exit 1
