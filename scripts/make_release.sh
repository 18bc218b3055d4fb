#!/usr/bin/env bash
# Makes the files of a release: a wheel, lora-train-VERSION-linux-x86_64.tar.xz and the SHA256SUMS of both. Same build,
# same bytes. The archive contains the files that `cmake --install` installs (cmake/Install.cmake), LICENSE and INSTALL.
#
#   scripts/make_release.sh [--output-dir DIR] [--build DIR] [--level N]
#
#   --output-dir DIR  output folder (default dist)
#   --build DIR       the build to pack, as is (default build/release, which is updated first)
#   --level N         xz level, 0 (fast) to 9 (default 6)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/dependencies.sh

output=dist level=6 options=()
die() { printf 'make_release: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case "$1" in
    --output-dir) [ $# -ge 2 ] || die "--output-dir needs a folder"; output="$2"; shift ;;
    --build) [ $# -ge 2 ] || die "--build needs a folder"; options=(--build "$2"); shift ;;
    --level) [ $# -ge 2 ] || die "--level needs a number"; level="$2"; shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument \"$1\". Expected --output-dir, --build and --level" ;;
  esac
  shift
done

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
scripts/stage_program.sh ${options[@]+"${options[@]}"} "$folder/tree"
mkdir -p "$output"
wheel="$(python3 scripts/pack_wheel.py --tree "$folder/tree" --output-dir "$output")"

version="$("$folder/tree/bin/lora-train" --version | awk 'NR == 1 { print $2 }')"
name="lora-train-$version-linux-x86_64"
mv "$folder/tree" "$folder/$name"
cp LICENSE "$folder/$name/"
sed "s/@VERSION@/$version/; s/@TORCH@/$TORCH_VERSION/; s/@PYTHONS@/${PYTHON_SERIES%% *} to ${PYTHON_SERIES##* }/" packaging/INSTALL \
  >"$folder/$name/INSTALL"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX -C "$folder" -cf - "$name" |
  xz -T1 "-$level" >"$output/$name.tar.xz"
(cd "$output" && sha256sum "$(basename "$wheel")" "$name.tar.xz" >SHA256SUMS)
printf '%s\n' "$wheel" "$output/$name.tar.xz" "$output/SHA256SUMS"
