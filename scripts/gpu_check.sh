#!/usr/bin/env bash
# Proves lora-train on the GPU of this machine: one command, no network, 10 minutes at most. Runs inside an unpacked
# bundle (scripts/make_bundle.sh), or in a checkout of the repository. Needs a Python with torch 2.11; transformers and
# peft for the parity part, which else says that they are missing.
#
#   scripts/gpu_check.sh [--bench] [--out DIR] [--bundle FILE] [--python FILE] [--only PART,...] [--budget SECONDS]
#   scripts/gpu_check.sh --dry-run-cpu [...]
#
#   --bench          also measure, shapes and the comparisons with transformers + PEFT (bench/compare_hf_gpu.py), as far as
#                    time goes; one that is left out is asked for by --only, with the whole budget to itself
#   --out DIR        where the logs go (default $OUT, else gpu_check_out): table.txt, log.txt, doctor.json, measure.json,
#                    shapes.jsonl, trace.json, compare.jsonl
#   --bundle FILE    unpack this archive and run what is in it, instead of building in the checkout
#   --python FILE    the Python with torch (default: python3)
#   --only PARTS     some of: machine doctor tests parity resume steady quickstart bench sanitizer measure shapes
#                    compare_equality compare_2x4 compare_8 compare_mix
#   --budget SECONDS all parts together (default 570)
#   --dry-run-cpu    every part that can run without a GPU, on the CPU
#
# A part that fails does not keep the others from running. A table comes last. Exit status: 0 all passed, 1 a part failed,
# 2 wrong arguments, 6 no GPU here.
set -uo pipefail
self="$(realpath "${BASH_SOURCE[0]}")"
root="$(dirname "$(dirname "$self")")"
command_line="$0 $*"

measuring="measure shapes compare_equality compare_2x4 compare_8 compare_mix"
parts="machine doctor tests parity resume steady quickstart bench sanitizer $measuring"
out="${OUT:-gpu_check_out}" bundle="" python=python3 only="" budget=570 device=cuda with_bench=false

die() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }
need_value() { [ "$2" -ge 2 ] || die "$1 needs a value"; }

arguments=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --bench) with_bench=true ;;
    --dry-run-cpu) device=cpu ;;
    --out) need_value "$1" $#; out="$2"; shift ;;
    --bundle) need_value "$1" $#; bundle="$2"; shift ;;
    --python) need_value "$1" $#; python="$2"; shift ;;
    --only) need_value "$1" $#; only="$2"; shift ;;
    --budget) need_value "$1" $#; budget="$2"; shift ;;
    -h | --help) sed -n '2,24s/^# \{0,1\}//p' "$self"; exit 0 ;;
    *) die "unknown argument \"$1\". See --help" ;;
  esac
  shift
done
for part in ${only//,/ }; do
  [[ " $parts " == *" $part "* ]] || die "no part \"$part\". There are: $parts"
done
python="$(command -v "$python")" || die "there is no such Python"

has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1 ||
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ "$device" = cuda ] && ! has_gpu; then
  printf 'gpu_check: no NVIDIA GPU here (no /dev/nvidia*, nvidia-smi finds none, nor does torch): %s\n' \
    'nothing was checked. --dry-run-cpu runs what a CPU can.' >&2
  exit 6
fi

# The archive's own copy of this script goes with its programs.
if [ -n "$bundle" ]; then
  mkdir -p "$work/bundle"
  tar xf "$bundle" -C "$work/bundle" || die "$bundle cannot be unpacked"
  left=()
  for ((i = 0; i < ${#arguments[@]}; i++)); do
    if [ "${arguments[i]}" = --bundle ]; then i=$((i + 1)); else left+=("${arguments[i]}"); fi
  done
  "$work"/bundle/*/scripts/gpu_check.sh ${left[@]+"${left[@]}"}
  exit
fi

if [ -e "$root/BUNDLE" ]; then
  bin="$root/bin"
else
  bin="${LORA_TRAIN_BIN:-$root/build/dev/bin}"
  if [ ! -x "$bin/lora-train" ]; then
    echo "gpu_check: building (in a bundle everything is built)" >&2
    (cd "$root" && scripts/install_deps.sh && cmake --preset dev && cmake --build --preset dev) >&2 ||
      die "the build failed"
  fi
fi
mkdir -p "$out" && out="$(realpath "$out")"
table="$out/table.txt" log="$out/log.txt"
rm -f "$table" "$log" "$out"/{doctor,measure,trace}.json "$out"/{shapes,compare}.jsonl
export LORA_TRAIN_BIN="$bin" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false NO_COLOR=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
# lora-train asks for LibTorch here.
LORA_TRAIN_TORCH="$("$python" -c 'import importlib.util as i, os; print(os.path.dirname(i.find_spec("torch").origin))')" ||
  die "$python has no torch. pip install torch==2.11.0, or name another with --python"
export LORA_TRAIN_TORCH
commit="$("$bin/lora-train" --version 2>/dev/null | head -n 1)"

header() {
  printf 'gpu_check of %s\ndate %s, command %s\n%s, %s cores, Python %s, torch %s\n' "$commit" \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$command_line" "$(. /etc/os-release && echo "$PRETTY_NAME")" "$(nproc)" \
    "$("$python" -c 'import platform; print(platform.python_version())')" \
    "$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$LORA_TRAIN_TORCH/version.py")"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null ||
    echo "no GPU: $device"
}

part_machine() {
  nvidia-smi 2>&1 || true
  lscpu 2>/dev/null | sed -n '1,25p'
  "$python" -m pip list 2>/dev/null | grep -iE '^(torch|transformers|peft|accelerate|nvidia|numpy|safetensors)' || true
  cat "$root/BUNDLE" 2>/dev/null
  local gpu
  gpu="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
  echo "figure: ${gpu:-no GPU}"
}

part_doctor() {
  local status
  (cd "$work" && "$bin/lora-train" doctor --json) >"$out/doctor.json"
  status=$?
  "$python" - "$out/doctor.json" "$device" <<'PY' || status=1
import json, sys
found = json.load(open(sys.argv[1]))
for check in found["checks"]:
    print(f"{check['status']:7s} {check['name']:28s} {check['value']}  {check['advice'] or ''}")
failed = [check["name"] for check in found["checks"] if check["status"] == "failed"]
print(f"figure: {len(found['kernels'])} kernel checks, {len(failed)} failed {', '.join(failed)[:60]}")
sys.exit(bool(failed) or not found["kernels"] or (sys.argv[2] == "cuda" and not found["gpus"]))
PY
  return "$status"
}

part_tests() { "$python" "$root/tests/gpu/unit_tests.py" --device "$device" --limit-s $(($1 - 10)); }

part_parity() {
  local more=()
  [ "$device" = cuda ] || more=(--cases 4 --curves 1)
  "$python" "$root/tests/gpu/parity_gpu.py" --device "$device" --work "$work/parity" --limit-s $(($1 - 10)) \
    ${more[@]+"${more[@]}"}
}

training() { "$python" "$root/tests/gpu/training.py" "$1" --device "$device" --work "$work/$1"; }
part_resume() { training resume; }
part_steady() { training steady; }
part_quickstart() { training quickstart; }
part_bench() { training bench; }

part_measure() {
  "$python" "$root/bench/gpu_measure.py" --device "$device" --limit-s $(($1 - 10)) --json "$out/measure.json" \
    --header "$commit, command $command_line"
}

# lora-train bench of every shape, full rows, and of the first the mix of documents too; a trace of that one.
part_shapes() {
  local shapes=(qwen2.5-7b qwen3-8b qwen3-4b qwen3-0.6b qwen2.5-0.5b mistral-7b) more=() status=0 shape
  if [ "$device" = cpu ]; then shapes=(tiny-qwen2 tiny-qwen3) more=(max_seq_len=64 --steps 3 --warm-up 1); fi
  measure_shape() {
    "$bin/lora-train" bench --shape "$@" "device=$device" ${more[@]+"${more[@]}"} --json >>"$out/shapes.jsonl" || status=1
  }
  measure_shape "${shapes[0]}" --profile-trace "$out/trace.json"
  measure_shape "${shapes[0]}" --mix
  for shape in "${shapes[@]:1}"; do measure_shape "$shape"; done
  "$python" - "$out/shapes.jsonl" <<'PY' || status=1
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for line in lines:
    speed = line["speed"]
    print(f"{line['shape']:14s} {line['tokens']:6d} tokens a step {speed['tokens_per_s']:10.0f} tokens/s, "
          f"{speed['gemm_share']:.1%} of {speed['gemm_flops_per_s'] / 1e12:.2f} TFLOP/s, {speed['peak_memory_gib']:.1f} GiB, "
          f"idle {speed['idle_share']}, {line['launches']} launches")
print("figure: tokens/s: " + ", ".join(f"{line['shape']} {line['speed']['tokens_per_s']:.0f}" for line in lines))
PY
  return "$status"
}

compare() { # what, limit
  local more=() status
  [ "$device" = cuda ] || more=(--tiny --rounds 1)
  "$python" "$root/bench/compare_hf_gpu.py" --device "$device" --parts "$1" --limit-s $(($2 - 10)) --work "$work/compare" \
    --json "$work/compare.json" --header "$commit, command $command_line" ${more[@]+"${more[@]}"}
  status=$?
  cat "$work/compare.json" >>"$out/compare.jsonl" 2>/dev/null
  return "$status"
}
part_compare_equality() { compare equality "$1"; }
part_compare_2x4() { compare 2x4 "$1"; }
part_compare_8() { compare 8 "$1"; }
part_compare_mix() { compare mix "$1"; }

# The tests of our own kernels under NVIDIA's checkers.
part_sanitizer() {
  local tool program status=0 limit=$(($1 / 6 - 2)) figure="" filter=()
  command -v compute-sanitizer >/dev/null || { echo "figure: compute-sanitizer is not on the PATH"; return 77; }
  # Kernels of the namespace lora_train alone: to watch those of LibTorch and cuBLAS would take minutes.
  case "$(compute-sanitizer --help 2>&1)" in
    *--kernel-name*) filter=(--kernel-name kernel_substring=lora_train) ;;
    *--kernel-regex*) filter=(--kernel-regex kns=lora_train) ;;
  esac
  for tool in memcheck racecheck synccheck; do for program in kernels_test optim_test; do
    echo "== compute-sanitizer --tool $tool ${filter[*]} $program"
    LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$bin/lib:$LORA_TRAIN_TORCH/lib" timeout "$limit" \
      compute-sanitizer --tool "$tool" --error-exitcode 99 "${filter[@]}" \
      "$bin/$program" --gtest_brief=1 --gtest_filter='*/cuda_Float:*/cuda_BFloat16:-*Attention*:*Gemm*'
    case $? in
      0) figure+=" $tool" ;;
      124) figure+=" $tool (nothing found in $limit s of $program, not finished)" ;;
      *) figure+=" $tool of $program FAILED"; status=1 ;;
    esac
  done; done
  echo "figure:$figure"
  return "$status"
}

# A part runs in a process of its own that `timeout` can end; its log goes to log.txt, without its middle where it is long.
run_part() { # name, limit, optional (nothing fails where no time is left for it)
  local name="$1" limit="$2" started=$SECONDS status result=FAILED figure left=$((budget - SECONDS))
  [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || return 0
  # A part that is alone has all the time there is.
  if [ "$limit" -gt "$left" ] || [ "$only" = "$name" ]; then limit=$left; fi
  if [ "${3-}" = optional ] && [ -z "$only" ] && [ "$left" -lt $(($2 / 2)) ]; then
    rows+=("$(printf '%-16s %-8s %5s  %s' "$name" "left out" - "no time was left; gpu_check.sh --only $name")")
    return 0
  fi
  if [ "$limit" -lt 15 ]; then
    rows+=("$(printf '%-16s %-8s %5s  %s' "$name" FAILED - "no time was left")")
    any_failed=1
    return 0
  fi
  printf '== %s\n' "$name" >&2
  timeout --kill-after=5 "$limit" bash -c "part_$name $limit" >"$work/part.log" 2>&1
  status=$?
  case "$status" in
    0) result=passed ;;
    77) result=skipped ;;
    *) any_failed=1 ;;
  esac
  figure="$(sed -n 's/^figure: *//p' "$work/part.log" | tail -n 1 | cut -c 1-190)"
  [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || figure="stopped after its $limit s; $figure"
  rows+=("$(printf '%-16s %-8s %5d  %s' "$name" "$result" $((SECONDS - started)) "$figure")")
  printf '\n==== %s: %s, exit status %d, %d s\n' "$name" "$result" "$status" $((SECONDS - started)) >>"$log"
  if [ "$(stat -c %s "$work/part.log")" -gt 1500000 ]; then
    { head -c 700000 "$work/part.log"; printf '\n[... cut ...]\n'; tail -c 700000 "$work/part.log"; } >>"$log"
  else
    cat "$work/part.log" >>"$log"
  fi
  [ "$result" = passed ] || tail -n 25 "$work/part.log" >&2
}

rows=()
any_failed=0
export root bin out work device python commit command_line
export -f part_machine part_doctor part_tests part_parity part_resume part_steady part_quickstart part_bench part_measure \
  part_sanitizer part_shapes part_compare_equality part_compare_2x4 part_compare_8 part_compare_mix training compare
header >"$log"
run_part machine 30
run_part doctor 90
run_part tests 150
run_part parity 150
run_part resume 60
[ "$device" = cpu ] || run_part steady 60
run_part quickstart 60
run_part bench 90
[ "$device" = cpu ] || run_part sanitizer 120
if $with_bench || [ -n "$only" ]; then
  run_part measure 180 optional
  run_part compare_equality 150 optional
  run_part shapes 300 optional
  for workload in 2x4 8 mix; do run_part "compare_$workload" 560 optional; done
fi
[ "${#rows[@]}" -gt 0 ] || die "--only $only names no part that runs here"
{
  header
  printf '\n%-16s %-8s %5s  %s\n' part result s figure
  printf '%s\n' "${rows[@]}"
  printf '\n%d s in all; everything that was written stands in log.txt\n' "$SECONDS"
} | tee "$table"
exit "$any_failed"
