#!/usr/bin/env bash
# The long versions of the tests against data loss: every promise of docs/durability.md with its second figure. About an
# hour on two cores. Runs a copy of the program, so you can build meanwhile. First run
# scripts/test.sh --only install,build.
#
#   scripts/torture.sh [--only PART,PART] [--percent N] [--log FILE]
#
# Parts: checkpoint, kill, signals, stops, disks, ranks, threads, sanitizers, fuzz. --percent N runs that share of the kills,
# signals, disks and ranks. Each case of ranks has a line in tests/batteries/results/rank_battery.txt.
# Runs one part per core at a time. FILE (default tests/batteries/results/torture.txt) gets the date, the commit, and at least
# one line per part, appended. The last line is `N parts, N failed`; the status is 1 if one failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts=checkpoint,kill,signals,stops,disks,ranks,threads,sanitizers,fuzz percent=100
log=tests/batteries/results/torture.txt

die() { printf 'torture.sh: %s\n' "$*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case "$1" in
    --only) [ $# -ge 2 ] || die "--only needs parts"; parts="$2"; shift ;;
    --log) [ $# -ge 2 ] || die "--log needs a file"; log="$2"; shift ;;
    --percent) [ $# -ge 2 ] || die "--percent needs a number"; percent="$2"; shift ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument \"$1\"" ;;
  esac
  shift
done
[ -x build/ci/bin/lora-train ] || die "build first: scripts/test.sh --only install,build"

program=$(mktemp -d -t lora-train-torture-XXXXXX)
trap 'rm -rf "$program"' EXIT
cp -r build/ci/bin/. "$program"
export LORA_TRAIN_BIN="$program" LORA_TRAIN_TORTURE="$percent" OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1

python_part() { .deps/venv/bin/python -m pytest -q -p no:cacheprovider "tests/integration/$1"; }

part_checkpoint() { "$program/run_folder_test" --gtest_filter='Durability.*' --gtest_brief=1; }
part_kill() { python_part train/test_kill.py; }
part_signals() { python_part train/test_signals.py; }
part_stops() { python_part train/test_stop_phases.py; }
part_disks() { python_part train/test_saving.py; }
part_ranks() { # runs with another part; its survivors have 2 s
  .deps/venv/bin/python tests/batteries/rank_battery.py --percent "$percent" --jobs $((($(nproc) + 1) / 2)) \
    --log tests/batteries/results/rank_battery.txt
}
part_threads() {
  cmake --preset tsan && cmake --build --preset tsan && ctest --preset tsan &&
    build/tsan/bin/checkpoint_writer_test --gtest_filter='CheckpointWriter.*' --gtest_brief=1
}
part_sanitizers() { # all modules without torch; the others have no sanitizer build (LibTorch has none)
  cmake --preset asan && cmake --build --preset asan && ctest --preset asan --parallel "$(nproc)" -L unit
}
part_fuzz() { scripts/fuzz.sh --seconds 60; }

for part in ${parts//,/ }; do
  declare -F "part_$part" >/dev/null || die "no part \"$part\""
done

run_part() { # name; leaves its output, its status and its time
  local started=$SECONDS status=0
  "part_$1" >"$program/$1.log" 2>&1 || status=$?
  printf '%s %s\n' "$status" $((SECONDS - started)) >"$program/$1.status"
}

header="date $(date '+%F %R'), commit $(git describe --always --dirty), \
$(sed -n 's/^model name\t*: //p' /proc/cpuinfo | head -1), $(nproc) cores, command: scripts/torture.sh --only $parts --percent $percent"
for part in ${parts//,/ }; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  run_part "$part" &
done
wait

[ ! -s "$log" ] || printf '\n' >>"$log"
printf '%s\n' "$header" | tee -a "$log"
failed=0 number=0
for part in ${parts//,/ }; do
  read -r status seconds <"$program/$part.status"
  number=$((number + 1)) result=passed
  [ "$status" -eq 0 ] || { result=FAILED; failed=$((failed + 1)); tail -n 60 "$program/$part.log" >&2; }
  {
    printf '== %s: %s, %d s\n' "$part" "$result" "$seconds"
    grep -E '^\.?durability: |tests passed|tests failed|^[a-z_]+ +[0-9]+ +[0-9]+ +[0-9]+|targets,| passed| failed' "$program/$part.log" |
      sed 's/^\.//' || true
  } | tee -a "$log"
done
printf '%d parts, %d failed\n' "$number" "$failed" | tee -a "$log"
[ "$failed" -eq 0 ]
