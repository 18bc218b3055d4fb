#!/usr/bin/env bash
# Makes a wheel of the program: `pip install lora_train-*.whl` puts lora-train on PATH and installs its torch.
#
#   scripts/make_wheel.sh [--output-dir DIR] [--build DIR] [--without-cuda] [--test PYTHON ...]
#
#   --output-dir DIR  output folder (default dist)
#   --build DIR       the build to pack, as is (default build/release, which is updated first)
#   --without-cuda    omit the CUDA library
#   --test PYTHON     afterwards, install it into a fresh virtual environment of this Python, with torch from PyPI (3 GB),
#                     and train; repeatable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output=dist options=() pythons=()
die() { printf 'make_wheel: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case "$1" in
    --output-dir) [ $# -ge 2 ] || die "--output-dir needs a folder"; output="$2"; shift ;;
    --build) [ $# -ge 2 ] || die "--build needs a folder"; options+=(--build "$2"); shift ;;
    --without-cuda) options+=(--without-cuda) ;;
    --test) [ $# -ge 2 ] || die "--test needs a Python"; pythons+=("$2"); shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument \"$1\". Expected --output-dir, --build, --without-cuda and --test" ;;
  esac
  shift
done

tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
scripts/stage_program.sh ${options[@]+"${options[@]}"} "$tree"
wheel="$(python3 scripts/pack_wheel.py --tree "$tree" --output-dir "$output")"
printf '%s\n' "$wheel"
for python in ${pythons[@]+"${pythons[@]}"}; do
  scripts/try_install.sh "$python" "$wheel"
done
