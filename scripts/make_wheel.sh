#!/usr/bin/env bash
# Makes a wheel of the program: `pip install lora_train-*.whl` puts lora-train into PATH and brings the torch that it runs with.
#
#   scripts/make_wheel.sh [--output-dir DIR] [--build DIR] [--without-cuda] [--test PYTHON ...]
#
#   --output-dir DIR  where the wheel goes (default dist)
#   --build DIR       the build that is packed (default build/release, which is brought up to date)
#   --without-cuda    leave the CUDA library out
#   --test PYTHON     then install it into a fresh virtual environment of this Python, with torch from PyPI (3 GB), and train;
#                     repeatable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output=dist build="" options=() pythons=()
die() { printf 'make_wheel: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case "$1" in
    --output-dir) [ $# -ge 2 ] || die "--output-dir needs a folder"; output="$2"; shift ;;
    --build) [ $# -ge 2 ] || die "--build needs a folder"; build="$2"; shift ;;
    --without-cuda) options+=(--without-cuda) ;;
    --test) [ $# -ge 2 ] || die "--test needs a Python"; pythons+=("$2"); shift ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument \"$1\". There are --output-dir, --build, --without-cuda and --test" ;;
  esac
  shift
done

if [ -z "$build" ]; then
  build=build/release
  scripts/install_deps.sh --no-test >&2
  cmake --preset release >&2
  cmake --build --preset release >&2
fi
scripts/checks/check_portable.py "$build/bin" >&2
wheel="$(python3 scripts/pack_wheel.py --program "$build/bin" --output-dir "$output" ${options[@]+"${options[@]}"})"
printf '%s\n' "$wheel"

for python in ${pythons[@]+"${pythons[@]}"}; do
  folder="$(mktemp -d)"
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
  (cd "$folder" && env -i HOME="$folder" PATH="$folder/venv/bin:/usr/bin:/bin" \
    lora-train train "$OLDPWD/examples/tiny-math/profile.yaml" --model "$OLDPWD/examples/tiny-math/model" \
    --train-data "$OLDPWD/examples/tiny-math/train.jsonl" --eval-data "$OLDPWD/examples/tiny-math/heldout.jsonl" \
    --output-dir "$folder/run" --max-steps 3 --quiet) || die "the wheel does not train with $("$python" -V)"
  printf 'trained with %s: %s\n' "$("$python" -V)" "$("$folder/venv/bin/lora-train" --version | head -n 1)"
  rm -rf "$folder"
done
