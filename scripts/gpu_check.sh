#!/usr/bin/env bash
# Tests and measures lora-train on this machine's GPU: no network, at most 10 minutes per call. Runs inside an unpacked
# bundle (scripts/make_bundle.sh), or in a checkout of the repository. Needs a Python with torch 2.11, transformers and peft.
#
#   scripts/gpu_check.sh [--call NAME] [--only PART,...] [--out DIR] [--archive FILE] [--bundle FILE] [--python FILE] [--budget S]
#   scripts/gpu_check.sh --dry-run-cpu [...]
#   scripts/gpu_check.sh --list [--call NAME]
#
#   --call NAME      correct (default), speed, rest: one visit of thirty minutes; then rivals, wrong, slow, figures, hybrid,
#                    gate_up, ranks. A call ends by naming the next one
#   --only PARTS     some parts of any call; a single part gets all the time
#   --list           the parts of the call, with their time limits and estimated needs
#   --out DIR        output folder (default $OUT, else gpu_check_out). Calls may share it: table-CALL.txt is for people,
#                    log.txt has everything (8 MB at most), measured.json the figures of all calls
#   --archive FILE   pack DIR into this .tar.gz at the end, even if the call is stopped
#   --bundle FILE    unpack this archive and run its contents, instead of building in the checkout
#   --python FILE    the Python with torch (default: python3)
#   --budget SECONDS for all parts together (default 570)
#   --dry-run-cpu    every part that can run without a GPU, on the CPU
#
# The others run even if a part fails, unless nothing runs on the GPU at all. Exit status: 0 all passed, 1 a part
# failed, 2 wrong arguments, 3 no part failed, but one was not run, 6 no GPU here.
set -uo pipefail
self="$(realpath "${BASH_SOURCE[0]}")"
root="$(dirname "$(dirname "$self")")"
command_line="$0 $*"
bundle="" python=python3 device=cuda is_listing=false forwarded=()

die() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }
need_value() { [ "$2" -ge 2 ] || die "$1 needs a value"; }

arguments=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --dry-run-cpu) device=cpu ;;
    --list) is_listing=true; forwarded+=("$1") ;;
    --call | --only | --out | --archive | --budget) need_value "$1" $#; forwarded+=("$1" "$2"); shift ;;
    --bundle) need_value "$1" $#; bundle="$2"; shift ;;
    --python) need_value "$1" $#; python="$2"; shift ;;
    -h | --help) sed -n '2,25s/^# \{0,1\}//p' "$self"; exit 0 ;;
    *) die "unknown argument \"$1\". See --help" ;;
  esac
  shift
done
python="$(command -v "$python")" || die "there is no such Python"

has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1 ||
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

if [ "$device" = cuda ] && ! $is_listing && ! has_gpu; then
  printf 'gpu_check: no NVIDIA GPU here (no /dev/nvidia*, nvidia-smi finds none, nor does torch): %s\n' \
    'nothing was checked. --dry-run-cpu runs what a CPU can.' >&2
  exit 6
fi

if $is_listing; then
  exec "$python" "$root/tests/gpu/gpu_check.py" ${forwarded[@]+"${forwarded[@]}"}
fi

# The archive's own copy of this script goes with its programs.
if [ -n "$bundle" ]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  tar xf "$bundle" -C "$work" || die "$bundle cannot be unpacked"
  left=()
  for ((i = 0; i < ${#arguments[@]}; i++)); do
    if [ "${arguments[i]}" = --bundle ]; then i=$((i + 1)); else left+=("${arguments[i]}"); fi
  done
  "$work"/*/scripts/gpu_check.sh ${left[@]+"${left[@]}"}
  exit
fi

if [ -e "$root/BUNDLE" ]; then
  bin="$root/bin"
else
  bin="${LORA_TRAIN_BIN:-$root/build/gpu/bin}"
  if [ ! -x "$bin/lora-train" ]; then
    echo "gpu_check: building (a bundle is already built)" >&2
    (cd "$root" && scripts/install_deps.sh && cmake --preset gpu && cmake --build --preset gpu) >&2 ||
      die "the build failed"
  fi
fi
# lora-train asks for LibTorch here.
LORA_TRAIN_TORCH="$("$python" -c 'import importlib.util as i, os; print(os.path.dirname(i.find_spec("torch").origin))')" ||
  die "$python has no torch. Run pip install torch==2.11.0, or name another with --python"
export LORA_TRAIN_TORCH LORA_TRAIN_BIN="$bin" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false NO_COLOR=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
exec "$python" "$root/tests/gpu/gpu_check.py" --out "${OUT:-gpu_check_out}" ${forwarded[@]+"${forwarded[@]}"} --device "$device" \
  --command-line "$command_line"
