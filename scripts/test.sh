#!/usr/bin/env bash
# Installs, builds and runs the tests that need no GPU, on a machine with only Debian 12 and Python 3.
# Stages: packages, install, build, unit, parity, integration, faults, sanitizers, fuzz, checks. Two run at a time, each
# as soon as its requirements are ready: the sanitizer build needs no LibTorch, so it starts while that is downloaded. A
# stage prints its log (build/test-results/STAGE.log) when it ends. Other stages run even if a test fails. The slowest
# tests and the times of the stages are in build/test-results/times.txt too.
# The last line is `N passed, N failed, N skipped`; the exit status is 1 if anything failed.
#
# The second tier: packaging and relocation, and the examples in full, which run whenever what they are made of is not as
# in their last committed result (tests/batteries/results/{packaging,examples}.txt); threads, slow_sanitizers and
# batteries, which take hours by hand.
#
#   scripts/test.sh                       the first tier, and what of the second is due
#   scripts/test.sh --all                 both tiers; commit the results it writes
#   scripts/test.sh --quick               only build, unit and checks
#   scripts/test.sh --only parity,checks  some stages (install and build must have run before)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# In starting order. The last two keep every core busy to the end; the earlier ones partly wait for disks.
stages=packages,install,sanitizers,build,fuzz,checks,unit,faults,parity,integration
second_tier=packaging,relocation,examples,threads,slow_sanitizers,batteries
# Stages that run when their inputs change, by the name of their record, and these inputs.
records=tests/batteries/results
declare -A stages_of=([packaging]=packaging,relocation [examples]=examples)
declare -A inputs_of=([packaging]="cmake packaging scripts CMakeLists.txt CMakePresets.json" [examples]="examples configs/jobs")
# The stages that must end before a stage starts; for a stage that is not run, an earlier result is used.
declare -A needs=([install]=packages [sanitizers]=packages [build]="packages install" [fuzz]="packages sanitizers"
  [checks]="packages install")
for name in unit faults parity integration packaging relocation examples; do needs[$name]="packages install build"; done
for name in threads slow_sanitizers; do needs[$name]="packages sanitizers fuzz"; done
needs[batteries]="packages install build unit faults parity integration packaging relocation examples"  # they time what they do
results="$PWD/build/test-results"
python="$PWD/.deps/venv/bin/python"

# lora-train limits the spinning of its threads itself; unit tests, probes and pytest with torch do not, and two of them
# would waste two cores on spinning.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"  # two builds at a time
# The program that the Python tests drive, and no network in any test.
export LORA_TRAIN_BIN="$PWD/build/ci/bin" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false

die() { printf 'test.sh: %s\n' "$*" >&2; exit 2; }

stage_packages() { scripts/install_deps.sh --packages; }

stage_install() { scripts/install_deps.sh; }

# The sanitizer build has the tests of modules without torch; they are compiled and run once.
core_tests() { case ",$stages," in *,sanitizers,*) echo OFF ;; *) echo ON ;; esac; }

stage_build() {
  cmake --preset ci -DLORA_TRAIN_CORE_TESTS="$(core_tests)" >"$results/configure.log" || { cat "$results/configure.log"; return 1; }
  cmake --build --preset ci
}

run_ctest() { # preset, name of the result file, more arguments
  local preset="$1" name="$2"
  shift 2
  ctest --preset "$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$results/$name.xml" "$@"
}

# Runs every test binary of a build as one process: loading LibTorch for each of 1,900 tests takes minutes.
run_unit_tests() { # folder of the build, name of the result files
  local folder="$1" name="$2"
  [ -s "$folder/unit_tests.txt" ] || { echo "no tests in $folder"; return 1; }
  sort "$folder/unit_tests.txt" | results="$results" folder="$folder" name="$name" \
    xargs -P "$(nproc)" -I{} bash -c \
    '"$folder/bin/{}" --gtest_brief=1 --gtest_output="xml:$results/$name-{}.xml" >"$results/$name-{}.log" 2>&1 ||
       { cat "$results/$name-{}.log"; echo "{} failed"; exit 1; }'
}

stage_unit() { run_unit_tests build/ci unit; }

# Each test file is one process, one per core at a time. Each core takes the next file in the order of conftest.py.
parallel=(-n "$(nproc)" --dist loadfile --no-loadscope-reorder)

stage_parity() { "$python" -m pytest -q "${parallel[@]}" tests/parity --junitxml="$results/parity.xml"; }

# Long runs that are killed, stopped and run out of disk (docs/durability.md); scripts/torture.sh has the long versions.
faults=(tests/integration/train/test_kill.py tests/integration/train/test_signals.py tests/integration/train/test_saving.py)

stage_integration() {
  "$python" -m pytest -q "${parallel[@]}" -m "not long_run" tests/integration --ignore=tests/integration/packaging \
    "${faults[@]/#/--ignore=}" --junitxml="$results/integration.xml"
}

# The shipped examples as people run them, until they have learned.
stage_examples() { "$python" -m pytest -q -n "$(nproc)" -m long_run tests/integration --junitxml="$results/examples.xml"; }

# Four at a time: they mostly wait.
stage_faults() { "$python" -m pytest -q -n 4 "${faults[@]}" --junitxml="$results/faults.xml"; }

# The wheel, the release archive and the bundle for a machine with a GPU.
stage_packaging() { "$python" -m pytest -q "${parallel[@]}" tests/integration/packaging --junitxml="$results/packaging.xml"; }

# A copy of the program, with a second virtual environment that has only the torch wheel; and a bare Debian.
stage_relocation() { run_ctest ci relocation -L relocation; }

# Address and undefined-behaviour sanitizers over the modules without torch: they read untrusted files.
stage_sanitizers() {
  cmake --preset asan >"$results/configure-asan.log" || { cat "$results/configure-asan.log"; return 1; }
  cmake --build --preset asan
  run_unit_tests build/asan sanitizers
}

# The saving thread under ThreadSanitizer; scripts/torture.sh covers the loader's threads (their modules take minutes to
# build).
stage_threads() {
  cmake --preset tsan >"$results/configure-tsan.log" || { cat "$results/configure-tsan.log"; return 1; }
  cmake --build --preset tsan --target checkpoint_writer_test
  build/tsan/bin/checkpoint_writer_test --gtest_filter='CheckpointWriter.*' --gtest_brief=1 --gtest_output="xml:$results/threads.xml"
}

# What the first tier runs without sanitizers: our CUDA code, compiled for the CPU, and thousands of faults of a disk.
stage_slow_sanitizers() {
  cmake --build --preset asan --target native_kernels_test run_folder_test
  local name
  for name in native_kernels run_folder; do
    "build/asan/bin/${name}_test" --gtest_brief=1 --gtest_output="xml:$results/slow_sanitizers-$name.xml"
  done
}

# Many cases of what the first tier has a slice of. Each writes its file in tests/batteries/results/.
stage_batteries() {
  local any_failed=0 folder=tests/batteries logs=tests/batteries/results
  : >"$results/batteries.txt"
  battery() { # name, command
    local name="$1" result=passed
    shift
    "$@" || { result=failed any_failed=1; }
    printf '%s %s\n' "$result" "$name" >>"$results/batteries.txt"
  }
  battery durability scripts/torture.sh --only checkpoint,kill,signals,stops,disks,ranks,threads,fuzz
  battery distill "$python" $folder/distill_battery.py
  battery hub "$python" $folder/hub_battery.py
  battery hostile "$python" $folder/hostile_battery.py --log $logs/hostile_battery.txt
  battery tokenizer "$python" $folder/tokenizer_battery.py --probe build/ci/bin/tokenizer-probe --log $logs/tokenizer_battery.txt
  battery quantisation "$python" $folder/quantisation_battery.py --probe build/ci/bin/quantization-probe --log $logs/quantisation_battery.txt
  battery templates "$python" scripts/checks/check_chat_templates.py
  return "$any_failed"
}

# Runs every fuzz target over its kept corpus and 2 s more, from a fixed seed; `scripts/fuzz.sh --seconds 60` and more
# by hand.
stage_fuzz() { scripts/fuzz.sh --seconds 2 --seed 1 --results "$results/fuzz.txt"; }

stage_checks() {
  local any_failed=0 script
  : >"$results/checks.txt"
  check() { # name, command
    local name="$1"
    shift
    if "$@"; then echo passed >>"$results/checks.txt"; else
      printf 'FAILED: %s\n' "$name"
      echo failed >>"$results/checks.txt"
      any_failed=1
    fi
  }
  for script in check_includes check_function_length; do
    check "$script --self-test" python3 "scripts/checks/$script.py" --self-test
    check "$script" python3 "scripts/checks/$script.py"
  done
  for script in scripts/*.sh scripts/checks/*.sh .ci/run; do
    check "syntax of $script" bash -n "$script"
  done
  check "scripts/checks/check_configure.sh" scripts/checks/check_configure.sh
  check "layout of the source" scripts/checks/check_format.sh
  check "links of the documentation" python3 scripts/checks/check_links.py
  check "mutations fit the source" python3 scripts/mutation_check.py --texts
  for script in examples/*/make_data.py; do
    check "what $script writes" data_is_reproducible "$(dirname "$script")"
  done
  return "$any_failed"
}

data_is_reproducible() { # folder of an example
  local folder="$results/$(basename "$1")" name
  rm -rf "$folder" && mkdir -p "$folder"
  python3 "$1/make_data.py" --output-dir "$folder" >/dev/null || return 1
  for name in train heldout; do
    cmp "$folder/$name.jsonl" "$1/$name.jsonl" || return 1
  done
}

# What the stages of a record depend on, as one checksum.
inputs() { # record
  # shellcheck disable=SC2086
  find ${inputs_of[$1]} -type f -not -path '*/__pycache__/*' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16
}

is_due() { ! grep -qs "^inputs $(inputs "$1")$" "$records/$1.txt"; }

record() { # record
  {
    printf 'inputs %s\n' "$(inputs "$1")"
    printf 'date %s, commit %s, command: scripts/test.sh\n' "$(date '+%Y-%m-%d %H:%M')" "$(git describe --always --dirty)"
    printf '%s, %s cores\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)"
    local name
    for name in ${stages_of[$1]//,/ }; do
      sed -n '/^examples\/\|^ *\(here\|theirs\) \|% tests passed\|Total Test time\|^[0-9]* passed/p' "$results/$name.log"
    done
  } >"$records/$1.txt"
  printf '%s: written; commit it\n' "$records/$1.txt"
}

# Runs one stage in its own process; writes its seconds and status, and its CPU time, to files. Never call it in a
# condition: bash would switch off `set -e` inside.
run_stage() { # name
  local name="$1" started=$SECONDS status
  printf '\n== %s\n' "$name"
  set +e
  (set -e; "stage_$name") </dev/null
  status=$?
  set -e
  times >"$results/$name.cpu"
  printf '%s %s\n' $((SECONDS - started)) "$status" >"$results/$name.time"
}

# The second line of `times` in run_stage: user and system time of its children, as 1m2.345s.
cpu_seconds() { awk -F '[ms ]+' 'NR == 2 { printf "%.0f", 60 * ($1 + $3) + $2 + $4 }' "$results/$1.cpu"; }

is_ready() { # name
  local needed
  for needed in ${needs[$1]:-}; do
    case " ${waiting[*]} ${running[*]} " in *" $needed "*) return 1 ;; esac
  done
}

start_ready_stages() {
  local name left=()
  for name in "${waiting[@]}"; do
    if [ ${#running[@]} -lt 2 ] && is_ready "$name"; then
      run_stage "$name" >"$results/$name.log" 2>&1 &
      running[$!]="$name"
    else
      left+=("$name")
    fi
  done
  waiting=("${left[@]}")
}

end_stage() { # process, name
  local status
  unset "running[$1]"
  [ -e "$results/$2.time" ] || { echo "0 1" >"$results/$2.time"; : >"$results/$2.cpu"; }  # it was killed
  cat "$results/$2.log"
  read -r _ status <"$results/$2.time"
  # Without an installation or a build, the rest could only fail.
  case "$2" in packages | install | build) [ "$status" -eq 0 ] || waiting=() ;; esac
}

run_stages() { # names
  local process
  declare -gA running=()
  waiting=("$@")
  set -m  # a process group per stage, so that all of it ends when this script is stopped
  trap 'for process in "${!running[@]}"; do kill -- "-$process" 2>/dev/null || true; done' EXIT
  start_ready_stages
  while [ ${#running[@]} -gt 0 ]; do
    sleep 0.2
    for process in "${!running[@]}"; do
      kill -0 "$process" 2>/dev/null || end_stage "$process" "${running[$process]}"
    done
    start_ready_stages
  done
  trap - EXIT
  set +m
}

print_times() { # seconds of all
  local name seconds
  printf '\n== slowest tests\n'
  python3 scripts/add_up_tests.py --slowest 20 "$results"
  printf '\n== times (two stages at a time)\n'
  for name in ${stages//,/ }; do
    [ -e "$results/$name.time" ] || continue
    read -r seconds _ <"$results/$name.time"
    printf '%-12s %5d s, %5s s of CPU\n' "$name" "$seconds" "$(cpu_seconds "$name")"
  done
  printf '%-12s %5d s\n' all "$1"
}

main() {
  local name started=$SECONDS
  for name in "${!stages_of[@]}"; do
    if [ $# -eq 0 ] && is_due "$name"; then
      printf '%s: not as in %s/%s.txt; testing %s too\n' "${inputs_of[$name]}" "$records" "$name" "${stages_of[$name]}"
      stages+=",${stages_of[$name]}"
    fi
  done
  while [ $# -gt 0 ]; do
    case "$1" in
      --all) stages+=",$second_tier" ;;
      --quick) stages=build,unit,checks ;;
      --only) [ $# -ge 2 ] || die "--only needs stages"; stages="$2"; shift ;;
      -h | --help) sed -n '2,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      *) die "unknown argument \"$1\". Expected --all, --quick and --only STAGE,STAGE" ;;
    esac
    shift
  done
  for name in ${stages//,/ }; do
    declare -F "stage_$name" >/dev/null || die "no stage \"$name\""
  done
  rm -rf "$results" && mkdir -p "$results"
  local status failed=()
  # shellcheck disable=SC2086
  run_stages ${stages//,/ }
  for name in ${stages//,/ }; do
    status=0
    [ ! -e "$results/$name.time" ] || read -r _ status <"$results/$name.time"
    [ "$status" -eq 0 ] || failed+=("$name")
  done
  print_times $((SECONDS - started)) | tee "$results/times.txt"
  for name in "${!stages_of[@]}"; do
    case ",$stages," in *",${stages_of[$name]},"*) [ ${#failed[@]} -gt 0 ] || record "$name" ;; esac
  done
  python3 scripts/add_up_tests.py "$results" ${failed[@]+"${failed[@]}"}
}

main "$@"
