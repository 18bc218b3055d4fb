#!/usr/bin/env bash
# Trains a grid of runs: one run per combination of values, each in its own folder; then compares them.
#
# `lora-train sweep` runs this script.
#
#   lora-train sweep FILE [FILE ...] KEY=V1,V2,... [KEY=V1,...] [flags] [-- flags of lora-train train]
#   lora-train sweep my.yaml learning_rate=1e-4,2e-4 lora_r=8,16
#
#   --KEY V1,V2     the same as KEY=V1,V2, for any key of a profile: --lora-r 8,16 --num-epochs 1
#   --profile FILE  the same as FILE; so is --config
#   --json          print the comparison as JSON, one object per line
#   --quiet         show only warnings and errors of the runs; --log-level LEVEL as in train
#   --jobs N        train N runs at a time (default 1); on a machine with GPUs, each gets its own (CUDA_VISIBLE_DEVICES)
#   --dry-run       print the commands without running them
#   --program FILE  lora-train (default: next to this script's folder, else on PATH)
#
# Each run has its own folder in output_dir, named after its values: learning_rate-0.0001-lora_r-8. An output_dir with {key}
# names the runs itself: 'output_dir=runs/lr{learning_rate}-r{lora_r}'; the other keys name a folder inside it.
# The same command resumes an interrupted sweep: it skips finished runs and resumes stopped and killed ones.
# The other runs continue if one fails.
# Exit status: 0 all done; 75 stopped on request (run the same command to resume); 2 wrong arguments or
# profile; else the status of the first run that failed. Logs go to stderr, the comparison to stdout.
set -uo pipefail

profiles=() keys=() values=() extra=() check_flags=() log_flags=() compare_flags=()
flags=(--profile --config --jobs --dry-run --program --json --quiet --log-level)
jobs=1 is_dry_run=false is_quiet=false program=""

die() { printf 'sweep: %s\n' "$*" >&2; exit 2; }
say() { $is_quiet || printf 'sweep: %s\n' "$*" >&2; }
need_value() { [ "$2" -ge 2 ] || die "$1 needs a value"; }

key_form() { # --lora-r 4,8 and --lora-r=4,8: lora_r=4,8
  local name="${1#--}"
  [[ "$name" == *=* ]] && set -- "$1" "${name#*=}" && name="${name%%=*}"
  printf '%s=%s' "${name//-/_}" "$2"
}

add_setting() { # key=values
  local key="${1%%=*}" known
  [ -n "${1#*=}" ] || die "$key has no value. Expected $key=V1,V2"
  for known in ${keys[@]+"${keys[@]}"}; do
    [ "$known" != "$key" ] || die "$key is given twice. Expected all of its values in one list: $key=V1,V2"
  done
  keys+=("$key") values+=("${1#*=}")
}

read_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --profile | --config) need_value "$1" $#; profiles+=(--profile "$2"); shift ;;
      --profile=* | --config=*) profiles+=(--profile "${1#*=}") ;;
      --jobs) need_value "$1" $#; jobs="$2"; shift ;;
      --set) need_value "$1" $#; add_setting "$2"; shift ;;
      --program) need_value "$1" $#; program="$2"; shift ;;
      --dry-run) is_dry_run=true ;;
      --json) compare_flags+=(--json) ;;
      --quiet) is_quiet=true; log_flags+=(--quiet) ;;
      --log-level) need_value "$1" $#; log_flags+=("$1" "$2"); shift ;;
      --log-level=*) log_flags+=("$1") ;;
      --list-flags) printf '%s\n' "${flags[@]}"; exit 0 ;;
      -h | --help) sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      --) shift; extra=("$@"); break ;;
      --nproc* | --max-time* | --allow-changed* | --resume* | --overwrite | -[!-]*)
        die "$1 is not a flag of sweep. Expected ${flags[*]} or any key of a profile (--lora-r 8,16; output_dir=...); put flags of lora-train train after --" ;;
      --*=*) add_setting "$(key_form "$1" "")" ;;
      --*)
        need_value "$1" $#
        [[ "$2" != --* ]] || die "$1 needs a value: $1 true"
        add_setting "$(key_form "$1" "$2")"; shift ;;
      *=*) add_setting "$1" ;;
      *) profiles+=(--profile "$1") ;;
    esac
    shift
  done
  [[ "$jobs" =~ ^[1-9][0-9]*$ ]] || die "--jobs is \"$jobs\"; expected 1 or more"
  [ ${#profiles[@]} -gt 0 ] || die "no profile; expected FILE KEY=V1,V2, such as: lora-train sweep my.yaml learning_rate=1e-4,2e-4"
  [ ${#keys[@]} -gt 0 ] || die "nothing to vary; expected KEY=V1,V2, such as: lora-train sweep ${profiles[1]} learning_rate=1e-4,2e-4"
}

# The flags after -- that `check` also has and gets: it returns the folder of a run.
read_extra() {
  local i
  for ((i = 0; i < ${#extra[@]}; ++i)); do
    case "${extra[i]}" in
      --output[-_]dir | --output[-_]dir=* | output_dir=*)
        die "give the folder as output_dir=DIR before --, so that each run gets its own folder in it" ;;
      --max-time | --nproc | --allow-changed | --resume) ((++i)) ;;
      --max-time=* | --nproc=* | --allow-changed=* | --resume=* | --overwrite) ;;
      --dry-run) die "--dry-run goes before --" ;;
      *) check_flags+=("${extra[i]}") ;;
    esac
  done
}

find_program() {
  local here candidate
  here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
  [ -z "$program" ] || { [ -x "$program" ] || die "--program: $program is not a program"; return; }
  for candidate in "$here/bin/lora-train" "$here/build/release/bin/lora-train" "$here/build/dev/bin/lora-train" \
    "$(command -v lora-train)"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then program="$candidate"; return; fi
  done
  die "no lora-train: build it (scripts/quickstart.sh), or name it with --program FILE"
}

# The values of a list, one per line: commas inside brackets and quotes do not split them.
split_values() { # text
  local text="$1" depth=0 quote="" part="" i c
  for ((i = 0; i < ${#text}; ++i)); do
    c="${text:i:1}"
    if [ -n "$quote" ]; then
      [ "$c" != "$quote" ] || quote=""
    else
      case "$c" in
        \" | \') quote="$c" ;;
        '[' | '{') depth=$((depth + 1)) ;;
        ']' | '}') depth=$((depth - 1)) ;;
        ,) if [ "$depth" -eq 0 ]; then printf '%s\n' "$part"; part=""; continue; fi ;;
      esac
    fi
    part+="$c"
  done
  printf '%s\n' "$part"
}

# All combinations, the last key fastest: grid[i] holds "key=value" lines.
grid=() counts=() varied=()
make_grid() {
  local i value old list
  grid=("")
  for ((i = 0; i < ${#keys[@]}; ++i)); do
    mapfile -t list < <(split_values "${values[i]}")
    counts+=("${#list[@]}")
    [ ${#list[@]} -eq 1 ] || varied+=("${keys[i]}")
    old=("${grid[@]}") grid=()
    local entry
    for entry in "${old[@]}"; do
      for value in "${list[@]}"; do
        [ -n "$value" ] || die "${keys[i]}=${values[i]} has an empty value"
        grid+=("$entry${entry:+$'\n'}${keys[i]}=$value")
      done
    done
  done
}

# The settings of a combination in one line, without those common to all.
label_of() { # index
  local line text=""
  while read -r line; do
    case " ${varied[*]-} " in *" ${line%%=*} "*) text+="${text:+ }$line" ;; esac
  done <<<"${grid[$1]}"
  printf '%s' "${text:-${grid[$1]//$'\n'/ }}"
}

# The profile of a combination in one line of JSON, as `lora-train check` resolves it.
profile_of() { # lines
  local settings
  mapfile -t settings <<<"$1"
  "$program" check --json --quiet --no-files "${profiles[@]}" ${check_flags[@]+"${check_flags[@]}"} "${settings[@]}"
}

# The value of a key with a single one, without quotes; nothing for a list, a map or a place inside one.
value_in() { # JSON key
  local value
  value="$(printf '%s\n' "$1" | sed -n 's/.*"'"$2"'": *\("\([^"\\]\|\\.\)*"\|[^]["{},]*\)[,}].*/\1/p')"
  [[ "$value" != \"* ]] || value="$(printf '%s\n' "${value:1:-1}" | sed 's/\\\(["\\/]\)/\1/g')"
  printf '%s' "$value"
}

# "lora_r-8" for a combination: the value as in the profile (0.0001 for 1e-4), the last part of a path, else as given.
part_of_name() { # lines JSON key
  local value="" line
  [[ "$3" == *[.[]* ]] || value="$(value_in "$2" "$3")"
  if [ -z "$value" ]; then
    while IFS= read -r line; do
      [ "${line%%=*}" != "$3" ] || value="${line#*=}"
    done <<<"$1"
  fi
  printf '%s\n-\n%s\n' "$3" "${value##*/}" | tr -c 'A-Za-z0-9._+\n-' '_' | sed 's/^_*//; s/_*$//; s/_\././g' | tr -d '\n'
}

# The names of the folders in output_dir, from the keys that it does not name.
name_folders() { # keys
  local i key line lines
  say "each run has its own folder in ${folders[0]}, named after $*"
  for ((i = 0; i < ${#grid[@]}; ++i)); do
    local name=""
    for key in "$@"; do name+="${name:+-}$(part_of_name "${grid[i]}" "${found[i]}" "$key")"; done
    folders[i]="${folders[i]%/}/$name"
    lines=""
    while IFS= read -r line; do
      [[ "$line" == output_dir=* ]] || lines+="$line"$'\n'
    done <<<"${grid[i]}"
    grid[i]="${lines}output_dir=${folders[i]}"
  done
}

# Every combination is checked before the first run starts.
folders=() found=()
find_folders() {
  local i folder stride j unnamed=()
  for ((i = 0; i < ${#grid[@]}; ++i)); do
    found+=("$(profile_of "${grid[i]}")") || die "the profile is refused with: $(label_of "$i")"
    folder="$(value_in "${found[i]}" output_dir)"
    [ -n "$folder" ] || die "the profile has no output_dir with: $(label_of "$i")"
    folders+=("$folder")
  done
  stride=${#grid[@]}
  for ((i = 0; i < ${#keys[@]}; ++i)); do
    stride=$((stride / counts[i]))
    [ "${counts[i]}" -eq 1 ] || [ "${folders[0]}" != "${folders[stride]}" ] || unnamed+=("${keys[i]}")
  done
  [ ${#unnamed[@]} -eq 0 ] || name_folders "${unnamed[@]}"
  for ((i = 0; i < ${#folders[@]}; ++i)); do
    for ((j = 0; j < i; ++j)); do
      [ "${folders[i]}" != "${folders[j]}" ] || die "two runs would go to ${folders[i]}: $(label_of "$j"), and $(label_of "$i")"
    done
  done
}

# One device per concurrent run; none if the machine has no GPU.
devices=()
find_devices() {
  local path
  if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
    IFS=, read -r -a devices <<<"$CUDA_VISIBLE_DEVICES"
  else
    for path in /dev/nvidia[0-9]*; do
      [ ! -e "$path" ] || devices+=("${#devices[@]}")
    done
  fi
  [ ${#devices[@]} -eq 0 ] || [ "$jobs" -le ${#devices[@]} ] ||
    die "--jobs $jobs, but there are ${#devices[@]} GPUs: each run needs its own"
}

command_of() { # index: sets `command`
  local settings
  mapfile -t settings <<<"${grid[$1]}"
  command=("$program" train "${profiles[@]}" ${log_flags[@]+"${log_flags[@]}"} ${extra[@]+"${extra[@]}"} "${settings[@]}")
}

print_commands() {
  local i
  for ((i = 0; i < ${#grid[@]}; ++i)); do
    command_of "$i"
    printf '%q ' "${command[@]}"
    printf '\n'
  done
  printf '%q ' "$program" compare ${compare_flags[@]+"${compare_flags[@]}"} "${folders[@]}"
  printf '\n'
}

# Waits for a process without `wait`, which may miss a signal that comes just before it.
await() { # pid
  while kill -0 "$1" 2>/dev/null; do sleep 0.1; done
}

# A process in its own session, like a run, that ends on SIGTERM: if it did, the signal went to every process (scancel
# --full, a stopped cgroup), including the run. It does not outlive the run, and ends it if its worker was killed.
start_witness() { # pid of the run
  # shellcheck disable=SC2016  # the shell that is started expands it
  setsid sh -c 'while kill -0 "$1"; do kill -0 "$PPID" || kill -TERM "$1"; sleep 1; done' witness "$1" >/dev/null 2>&1 </dev/null &
  witness="$!"
}

# True if the script was killed (kill -9) and this worker of it continues alone.
is_orphan() {
  local parent
  read -r _ _ _ parent _ <"/proc/$BASHPID/stat"
  [ "$parent" -ne "$$" ]
}

# The same for a run, which gets each stop request once: a second one ends it without a checkpoint.
await_run() { # pid
  local num_told=0 is_told=false witness
  start_witness "$1"
  while kill -0 "$1" 2>/dev/null; do
    if [ -e "$state/request.$((num_told + 1))" ]; then
      num_told=$((num_told + 1))
      sleep 0.5  # by then, a signal to all has reached all
      if kill -0 "$witness" 2>/dev/null; then kill -TERM "$1" 2>/dev/null; else start_witness "$1"; fi
    fi
    if ! $is_told && is_orphan; then
      is_told=true
      kill -TERM "$1" 2>/dev/null
    fi
    sleep 0.1
  done
  kill "$witness" 2>/dev/null
  wait "$1"
}

# Takes remaining runs until there are none or one was stopped. A run has its own session, so that signals from the
# terminal (Ctrl-C) reach it only through here.
worker() { # number
  local code i
  trap : INT TERM HUP
  [ ${#devices[@]} -eq 0 ] || [ "$jobs" -eq 1 ] || export CUDA_VISIBLE_DEVICES="${devices[$1]}"
  for ((i = 0; i < ${#grid[@]}; ++i)); do
    [ ! -e "$state/stop" ] || return 0
    ! is_orphan || return 0
    mkdir "$state/taken.$i" 2>/dev/null || continue
    command_of "$i"
    say "run $((i + 1)) of ${#grid[@]}: $(label_of "$i")"
    if [ "$jobs" -eq 1 ]; then
      setsid "${command[@]}" <&0 &
    else
      setsid "${command[@]}" >"$state/out.$i" 2>&1 </dev/null &
    fi
    code=0
    await_run "$!" || code=$?
    if is_orphan; then
      rm -rf "$state"
      return 0
    fi
    printf '%s\n' "$code" >"$state/code.$i"
    [ "$code" -ne 75 ] || : >"$state/stop"
    [ "$jobs" -eq 1 ] || [ "$code" -eq 0 ] || [ "$code" -eq 75 ] || tail -n 5 "$state/out.$i" >&2
    say "run $((i + 1)) of ${#grid[@]}: $(outcome "$code") (${folders[i]})"
  done
}

outcome() { # exit status
  case "$1" in
    0) echo "done" ;;
    75) echo "stopped" ;;
    *) echo "failed with exit status $1" ;;
  esac
}

num_requests=0
# shellcheck disable=SC2317,SC2329  # called by a trap
request_stop() {
  num_requests=$((num_requests + 1))
  : >"$state/stop"
  : >"$state/request.$num_requests"
}

run_all() {
  local i pid pids=()
  trap request_stop INT TERM HUP
  for ((i = 0; i < jobs; ++i)); do
    worker "$i" &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do await "$pid"; done
  trap - INT TERM HUP
}

# Reports the outcome; ends the script.
finish() {
  local i code first=0 num_failed=0 present=()
  for ((i = 0; i < ${#grid[@]}; ++i)); do
    [ ! -e "${folders[i]}" ] || present+=("${folders[i]}")
    code="$(cat "$state/code.$i" 2>/dev/null || echo none)"
    case "$code" in
      0 | 75 | none) ;;
      *)
        num_failed=$((num_failed + 1))
        [ "$first" -ne 0 ] || first="$code"
        ;;
    esac
  done
  [ "$num_failed" -eq 0 ] || say "$num_failed of ${#grid[@]} runs failed; the same command tries them again"
  if [ -e "$state/stop" ]; then
    say "stopped; run the same command to resume"
    exit 75
  fi
  [ ${#present[@]} -eq 0 ] || "$program" compare ${compare_flags[@]+"${compare_flags[@]}"} "${present[@]}" || [ "$first" -ne 0 ] || first=1
  exit "$first"
}

read_arguments "$@"
read_extra
find_program
make_grid
find_folders
find_devices
if $is_dry_run; then
  print_commands
  exit 0
fi
state="$(mktemp -d)"
trap 'rm -rf "$state"' EXIT
run_all
finish
