#!/usr/bin/env bash
# Builds the libFuzzer targets (preset asan) and runs each over its kept corpus and then for some seconds, one per core
# at a time.
#   scripts/fuzz.sh [--seconds N] [--seed N] [--results FILE] [TARGET...]
# Default: 60 seconds; 0 runs only the corpus. Seed 0 differs each time. No TARGET means all.
# A target fails on a crash, a sanitizer report, a leak, an input that takes more than 5 s, or more than 2 GiB of memory.
# The failing input is in build/fuzz/findings/TARGET; after the fix, keep it in tests/fuzz/corpus/TARGET.
# FILE gets one line per target, `passed` or `failed` first. The last line is a count; the status is 1 if one failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=(safetensors model_folder adapter_folder manifest profile
  jsonl_examples tokenizer_json sentencepiece tekken jinja jinja_expression)
seconds=60
seed=0
results=/dev/null
targets=()

die() { printf 'fuzz.sh: %s\n' "$*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) [ $# -ge 2 ] || die "--seconds needs a number"; seconds="$2"; shift ;;
    --seed) [ $# -ge 2 ] || die "--seed needs a number"; seed="$2"; shift ;;
    --results) [ $# -ge 2 ] || die "--results needs a file"; results="$2"; shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) die "unknown argument \"$1\"" ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [ -f "tests/fuzz/$target.cpp" ] || die "no target \"$target\"; there are: ${all[*]}"
done

cmake --preset asan >/dev/null
cmake --build --preset asan --target "${targets[@]/#/fuzz_}" >/dev/null

run_target() { # name; output goes to its log
  local name="$1" work="build/fuzz/work/$1" findings="build/fuzz/findings/$1"
  local options=("-seed=$seed" -rss_limit_mb=2048 -timeout=5 -verbosity=1 -print_final_stats=1 "-artifact_prefix=$findings/")
  rm -rf "$work" && mkdir -p "$work" "$findings"
  # First the kept inputs one by one, so that a bad one is named; then they are the seeds.
  "build/asan/bin/fuzz_$name" "${options[@]}" -runs=0 "tests/fuzz/corpus/$name" || return 1
  [ "$seconds" -eq 0 ] ||
    "build/asan/bin/fuzz_$name" "${options[@]}" "-max_total_time=$seconds" -max_len=16384 "$work" "tests/fuzz/corpus/$name"
}

stat_of() { sed -n "s/^stat::$2: *//p" "$1" | tail -1; }

report() { # name; what run_in_background left
  local name="$1" log="build/fuzz/logs/$1.log" result seconds_taken coverage
  read -r result seconds_taken <"build/fuzz/logs/$name.result"
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -c6-)
  printf '%-18s %8s %8s %12s %9s %8s  %s\n' "$name" "$(find "tests/fuzz/corpus/$name" -type f | wc -l)" \
    "$seconds_taken" "$(stat_of "$log" number_of_executed_units)" "$coverage" "$(stat_of "$log" peak_rss_mb)" "$result"
  printf '%s %s\n' "$result" "$name" >>"$results"
  [ "$result" = passed ] || { failed=$((failed + 1)); tail -n 40 "$log"; ls -l "build/fuzz/findings/$name"; }
}

run_in_background() { # name
  local started=$SECONDS result=passed
  run_target "$1" >"build/fuzz/logs/$1.log" 2>&1 || result=failed
  printf '%s %s\n' "$result" $((SECONDS - started)) >"build/fuzz/logs/$1.result"
}

mkdir -p build/fuzz/logs
: >"$results"
failed=0
num_started=0
declare -A process
set -m  # a group of processes per target, so that all of it goes when this script is stopped
trap 'for group in "${process[@]}"; do kill -- "-$group" 2>/dev/null || true; done' EXIT
start_next() {
  [ "$num_started" -lt ${#targets[@]} ] || return 0
  run_in_background "${targets[num_started]}" &
  process[${targets[num_started]}]=$!
  num_started=$((num_started + 1))
}
printf '%-18s %8s %8s %12s %9s %8s  %s\n' target corpus seconds executions coverage rss_mb result
for ((i = 0; i < $(nproc); ++i)); do start_next; done
for target in "${targets[@]}"; do
  wait "${process[$target]}"
  start_next
  report "$target"
done
printf '%d targets, %d failed\n' ${#targets[@]} "$failed"
[ "$failed" -eq 0 ]
