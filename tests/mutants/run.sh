#!/usr/bin/env bash
# Every mutant of tests/mutants/*.list must make the test that it names fail: a test that a broken program passes proves nothing.
#
# A list holds blocks of four lines: file, a line fragment that occurs once in it (or, as "@N fragment", on N lines or
# more, of which the N-th is meant), what replaces the fragment, and "binary: test case pattern". Blank lines and lines that
# start with # are skipped. Each mutant is applied to a copy of the sources, built, tested and taken back. Usage: tests/mutants/run.sh JOBS [list...]
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-2}
shift || true
lists=("$@")
[ ${#lists[@]} -gt 0 ] || lists=(tests/mutants/*.list)

copy=build-mutants/source
build=build-mutants/build
mkdir -p "$copy"
git ls-files -z CMakeLists.txt cmake csrc kernels examples tests | xargs -0 cp --parents -u -t "$copy"
cmake -S "$copy" -B "$build" -G Ninja -DTERCET_WARNINGS_AS_ERRORS=OFF -DTERCET_CUDA=OFF \
  -DTERCET_EMULATOR_CHECKERS=OFF > build-mutants/configure.log

declare -i killed=0 survived=0
run_mutant() {
  local file=$1 original=$2 mutated=$3 binary=${4%%: *} pattern=${4#*: }
  local count place=1 last=1
  if [[ $original =~ ^@([0-9]+)\ (.*)$ ]]; then
    place=${BASH_REMATCH[1]} original=${BASH_REMATCH[2]} last=1000
  fi
  count=$(grep -cF -- "$original" "$file" || true)
  if [ "$count" -lt "$place" ] || [ "$count" -gt "$last" ]; then
    echo "BROKEN  $file: the fragment occurs $count times: $original"
    survived+=1
    return
  fi
  ORIGINAL=$original MUTATED=$mutated PLACE=$place awk '
    { at = index($0, ENVIRON["ORIGINAL"])
      if (at && ++seen == ENVIRON["PLACE"]) $0 = substr($0, 1, at - 1) ENVIRON["MUTATED"] substr($0, at + length(ENVIRON["ORIGINAL"]))
      print }' "$file" > "$copy/$file"
  if ! cmake --build "$build" -j "$jobs" --target "$binary" > build-mutants/build.log 2>&1; then
    echo "BROKEN  $file: does not compile: $mutated"
    survived+=1
  elif "$build/tests/$binary" --test-case="$pattern" --minimal > build-mutants/test.log 2>&1; then
    echo "ALIVE   $file: $original -> $mutated ($binary: $pattern)"
    survived+=1
  else
    echo "killed  $file: $original -> $mutated"
    killed+=1
  fi
  cp "$file" "$copy/$file"
}

while IFS= read -r file; do
  IFS= read -r original
  IFS= read -r mutated
  IFS= read -r test
  run_mutant "$file" "$original" "$mutated" "$test"
done < <(cat "${lists[@]}" | grep -vE '^(#|$)')

echo "$killed mutants killed, $survived not"
[ "$survived" -eq 0 ] && [ "$killed" -gt 0 ]
