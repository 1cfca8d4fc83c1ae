#!/usr/bin/env bash
# Collects what a machine with a GPU and no compilers or packages needs to run everything that only a GPU can say: an
# archive of the program, the tests, their data and the shared libraries, and run.sh. It stays below 64 MiB:
#   cmake -S . -B build-sm90 -G Ninja -DTERCET_CUDA_ARCHITECTURES=90-real && cmake --build build-sm90
# Usage: tools/gpu_bundle.sh BUILD_FOLDER BUNDLE_FOLDER; there: bash BUNDLE_FOLDER/run.sh [RESULTS_FOLDER]
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
bundle=$2
most_mib=64

programs=(tercet libtercet_cuda.so examples/demo_dialogues tests/device_probe tests/test_layouts_cuda tests/test_kernels
          tests/test_train tests/test_rollout tests/test_app)
for program in "${programs[@]}"; do
  [ -f "$build/$program" ] || { echo "$build/$program is missing: build everything with TERCET_CUDA=ON first" >&2; exit 1; }
done

rm -rf "$bundle"
mkdir -p "$bundle"
cp "$source/tools/gpu_bundle_run.sh" "$bundle/run.sh"
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

# Tests look for their data and for the program where they were built; run.sh links these paths to the bundle.
case $build in
  "$source"/*) binaries=source/${build#"$source"/} ;;
  *) binaries=build ;;
esac
printf 'source=%q\nbuild=%q\nbinaries=%q\n' "$source" "$build" "$binaries" > "$parts/paths"
mkdir -p "$parts/lib" "$parts/source"
(cd "$source" && cp -r --parents tests/golden tests/gpu weights examples/demo tools kernels CMakeLists.txt "$parts/source")
for program in "${programs[@]}"; do
  mkdir -p "$(dirname "$parts/$binaries/$program")"
  strip --strip-debug -o "$parts/$binaries/$program" "$build/$program"
done

# The libraries of Debian's packages, without the C library and the driver.
(cd "$build" && ldd "${programs[@]}") | sed -nE 's/.* => (\/[^ ]+) .*/\1/p' | sort -u |
  grep -vE '/(ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libcuda\.)' |
  while read -r library; do cp -L "$library" "$parts/lib/"; done

tar -C "$parts" -czf "$bundle/bundle.tar.gz" .
mib=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $mib MiB"
if [ "$mib" -ge $most_mib ]; then
  echo "not below $most_mib MiB: build with -DTERCET_CUDA_ARCHITECTURES=90-real" >&2
  exit 1
fi
