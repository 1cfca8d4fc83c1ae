#!/usr/bin/env bash
# Installs the program: PREFIX/lib/tercet with its libraries of kernels, a link in PREFIX/bin, manual page, completion, documents.
# Usage: tools/install.sh install|uninstall BUILD_FOLDER PREFIX   (DESTDIR in the environment goes before PREFIX)
set -euo pipefail
cd "$(dirname "$0")/.."

what=$1
build=$2
root=${DESTDIR:-}$3
share=$root/share

if [ "$what" = uninstall ]; then
  rm -rf "$root/lib/tercet" "$share/doc/tercet"
  rm -f "$root/bin/tercet" "$share/man/man1/tercet.1" "$share/bash-completion/completions/tercet"
  exit 0
fi
install -d "$root/bin" "$root/lib/tercet"
install -m 755 "$build/tercet" "$root/lib/tercet/tercet"
for library in libtercet_cuda.so libtercet_emu.so; do
  if [ -f "$build/$library" ]; then install -m 644 "$build/$library" "$root/lib/tercet/$library"; fi
done
ln -sfn ../lib/tercet/tercet "$root/bin/tercet"
"$build/tercet" --man | install -D -m 644 /dev/stdin "$share/man/man1/tercet.1"
"$build/tercet" --bash-completion | install -D -m 644 /dev/stdin "$share/bash-completion/completions/tercet"
install -D -m 644 -t "$share/doc/tercet" README.md LICENSE
echo "installed $root/bin/tercet"
