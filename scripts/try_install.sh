#!/usr/bin/env bash
# Installs a wheel or a release archive into a fresh folder, as docs/install.md describes, and trains 3 steps on the example.
#
#   scripts/try_install.sh [--torch DIR] PYTHON FILE
#
#   --torch DIR  torch from this site-packages folder, of the same Python series, instead of 3 GB from PyPI
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/dependencies.sh

die() { printf 'try_install: %s\n' "$*" >&2; exit 1; }

torch=""
case "${1:-}" in
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --torch) torch="${2:-}"; shift 2 ;;
esac
[ $# -eq 2 ] || die "name a Python and a wheel or an archive"
python="$1" file="$(realpath "$2")" started=$SECONDS
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/venv"
site="$(echo "$folder"/venv/lib/python3*/site-packages)"
[ -z "$torch" ] || printf '%s\n' "$torch" >"$site/torch.pth"
pip_install() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
case "$file" in
  *.whl)
    pip_install ${torch:+--no-deps --no-index} "$file"
    program="$folder/venv/bin" ;;
  *.tar.xz)
    [ -n "$torch" ] || pip_install "torch==$TORCH_VERSION"
    tar xf "$file" -C "$folder"
    program="$(echo "$folder"/lora-train-*/bin)" ;;
  *) die "$file is neither a wheel nor an archive" ;;
esac

example="$PWD/examples/tiny-math"
cd "$folder"
lora_train() { env -i HOME="$folder" PATH="$program:$folder/venv/bin:/usr/bin:/bin" lora-train "$@"; }
lora_train train "$example/profile.yaml" --model "$example/model" --train-data "$example/train.jsonl" \
  --eval-data "$example/heldout.jsonl" --output-dir run --max-steps 3 --quiet ||
  die "$(basename "$file") does not train with $("$python" -V)"
[ -s run/adapter/adapter_model.safetensors ] || die "$(basename "$file") wrote no adapter"
[ "$(lora_train check --list | wc -l)" -gt 5 ] || die "$(basename "$file") has no profiles"
printf '%s, %s: installed and trained 3 steps in %d s. %s\n' "$(basename "$file")" "$("$python" -V)" $((SECONDS - started)) \
  "$(lora_train --version | sed -n 's/^ *\(LibTorch.*\)/\1/p')"
