#!/usr/bin/env bash
# Copies the built program to a fresh folder and runs it with a second virtual environment that has only the torch
# wheel, as on a machine without this repository: it must find LibTorch through python3 and train.
#
#   scripts/checks/check_relocation.sh [BIN]     BIN: folder of lora-train (default build/dev/bin)
#
# The environment uses Python 3.12 if available (RELOCATION_PYTHON names another), else the Python of .deps/venv, whose
# files it shares. It is kept in .deps/relocation-<version> and reused.
# Exit 0: works. 1: does not. 77: not tested, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=scripts/dependencies.sh
source scripts/dependencies.sh

bin="$(realpath "${1:-build/dev/bin}")"
deps="$PWD/.deps"
own_torch="$(echo "$deps"/venv/lib/python3*/site-packages/torch)"

skip() { printf 'check_relocation: SKIPPED: %s\n' "$*"; exit 77; }
fail() { printf 'check_relocation: FAILED: %s\n' "$*" >&2; exit 1; }

second_python() {
  local candidate
  for candidate in "${RELOCATION_PYTHON:-}" "$HOME"/.pyenv/versions/3.12.*/bin/python3 "$(command -v python3.12 || true)" \
    "$deps/venv/bin/python3"; do
    if [ -x "$candidate" ] && "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
}

series_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Same Python: the wheels are already unpacked; hard links cost neither network nor disk.
link_wheels() { # venv
  local from to name
  from="$(dirname "$own_torch")"
  to="$(echo "$1"/lib/python3*/site-packages)"
  for name in torch "torch-$TORCH_VERSION.dist-info" torchgen functorch nvidia triton; do
    [ ! -e "$from/$name" ] || cp -al "$from/$name" "$to/" 2>/dev/null || cp -a "$from/$name" "$to/"
  done
}

make_environment() { # python, venv
  rm -rf "$2.new"
  "$1" -m venv "$2.new"
  if [ "$(series_of "$1")" = "$(series_of "$deps/venv/bin/python3")" ]; then
    link_wheels "$2.new"
  else
    "$2.new/bin/python3" -m pip install --quiet "torch==$TORCH_VERSION" || return 1
  fi
  mv "$2.new" "$2"
}

[ -x "$bin/lora-train" ] || fail "no $bin/lora-train: build first"
[ -e "$bin/lib/liblora_train_engine.so" ] || fail "no engine in $bin/lib"
python="$(second_python)"
[ -n "$python" ] || skip "no Python with venv and ensurepip"
venv="$deps/relocation-$(series_of "$python")"
[ -x "$venv/bin/python3" ] || make_environment "$python" "$venv" ||
  skip "torch $TORCH_VERSION could not be installed for $python (no network?)"

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cp -r "$bin/lora-train" "$bin/configs" "$bin/lib" "$folder/" # as a user copies it: links stay links
[ -z "$(find "$folder" -type l)" ] || fail "$(find "$folder" -type l) would point nowhere on another machine"
echo /nonexistent/site-packages/torch >"$folder/lib/torch_path" # the build's path does not exist on another machine
for file in "$folder/lora-train" "$folder"/lib/*.so*; do
  ! readelf -d "$file" | grep -F "$own_torch" || fail "$file carries a run path of this machine"
done

cd "$folder"
relocated() { env -i HOME="$folder" PATH="$venv/bin:/usr/bin:/bin" "$folder/lora-train" "$@"; }

relocated --version | tee version.txt
grep -qF "($venv/lib" version.txt || fail "LibTorch was not found in $venv"
grep -q ', loaded$' version.txt || fail "the engine was not loaded"
relocated check --list | grep -q h100 || fail "the shipped profiles are not found"

cat >config.json <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-6,
 "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
JSON
relocated init-model --config config.json --output-dir model
for i in $(seq 1 16); do
  printf '{"input_ids": [%d, 2, 3, 4, 5, 6, 7, 8], "labels": [%d, 2, 3, 4, 5, 6, 7, 8]}\n' "$i" "$i"
done >rows.jsonl
relocated train --model model --train-data rows.jsonl --output-dir run --json device=cpu precision=fp32 max_seq_len=16 \
  micro_batch_size=2 global_batch_size=4 max_steps=3 learning_rate=1e-2 >summary.txt
"$venv/bin/python3" - <<'PY' || fail "the run did not do its 3 steps"
import json
summary = json.loads(open("summary.txt").read().splitlines()[-1])
print("status", summary["status"], "step", summary["step"], "train_loss", summary["train_loss"])
assert summary["status"] == "done" and summary["step"] == 3, summary
PY
[ -s run/adapter/adapter_model.safetensors ] || fail "no adapter was written"
printf 'check_relocation: passed with Python %s\n' "$(series_of "$venv/bin/python3")"
