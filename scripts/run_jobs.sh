#!/usr/bin/env bash
# The five jobs that this project grew out of (docs/jobs.md), each with its authors' figures next to those measured here.
#
#   scripts/run_jobs.sh [JOB...]                 small, on a CPU: the model and data of examples/tiny-math
#   scripts/run_jobs.sh --gpu --train-data FILE [--model DIR] [JOB...]   real size, with your data
#
#   JOB             a folder of configs/jobs, or the letter before its hyphen (default: all)
#   --output DIR    folder of the runs (default runs/jobs); existing runs are replaced
#   --program FILE  lora-train (default: the newest build of this tree, else on PATH)
#
# Exit status: 0 all jobs done; 2 wrong arguments; else that of the first job that failed. Prints the table on stdout; logs go
# into DIR.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

device=cpu output=runs/jobs program="" data=() model=() wanted=()

die() { printf 'run_jobs: %s\n' "$*" >&2; exit 2; }

# Paths in arguments are relative to the caller's folder.
full_path() { case "$1" in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$OLDPWD" "$1" ;; esac; }

read_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --gpu) device=gpu ;;
      --output | --program | --train-data | --model)
        [ $# -ge 2 ] || die "$1 needs a value"
        case "$1" in
          --output) output="$(full_path "$2")" ;;
          --program) program="$(full_path "$2")" ;;
          --train-data) data=(--train-data "$(full_path "$2")") ;;
          --model) if [ -d "$(full_path "$2")" ]; then model=(--model "$(full_path "$2")"); else model=(--model "$2"); fi ;;
        esac
        shift ;;
      -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      -*) die "unknown flag \"$1\". See --help" ;;
      *) wanted+=("$1") ;;
    esac
    shift
  done
  [ "$device" = cpu ] || [ ${#data[@]} -gt 0 ] || die "--gpu trains on your data: expected --train-data FILE"
  [ "$device" = gpu ] || [ ${#data[@]} -eq 0 ] || die "--train-data is for --gpu; on a CPU, the jobs use their own small data"
}

find_program() {
  local found
  [ -n "$program" ] && return
  # shellcheck disable=SC2012  # our own names
  found="$(ls -t build/*/bin/lora-train 2>/dev/null | head -n 1)"
  program="${found:-$(command -v lora-train)}"
  [ -n "$program" ] || die "no lora-train: build it, or give --program FILE"
}

# The folders of the requested jobs, one per line.
jobs_of() {
  local wanted name folder
  [ $# -gt 0 ] || set -- configs/jobs/*/
  for wanted in "$@"; do
    name="$wanted"
    [ -d "$name" ] || name="$(compgen -G "configs/jobs/${name%/}" || compgen -G "configs/jobs/${name,,}-*")" || die "no job \"$wanted\" in configs/jobs"
    for folder in $name; do printf '%s\n' "${folder%/}"; done
  done
}

# Lines of job.json for the shell: name, command, profile, ranks and quoted flags of each run.
runs_of() {
  python3 - "$1/job.json" "$device" <<'PYTHON'
import json, shlex, sys
for run in json.load(open(sys.argv[1]))["runs"]:
    print(run["name"], run.get("command", "train"), run[sys.argv[2]], run[sys.argv[2] + "_ranks"], shlex.join(run.get(sys.argv[2] + "_flags", [])))
PYTHON
}

# For the stand-in of a teacher (configs/jobs/distill): a free port.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# The authors' figures and ours, from job.json, summary.json and metrics.jsonl.
print_run() { # job folder, run, output folder
  python3 - "$@" "$device" <<'PYTHON'
import json, sys
folder, name, output, device = sys.argv[1:]
seed = next(run for run in json.load(open(folder + "/job.json"))["runs"] if run["name"] == name)["seed"]
summary = json.load(open(output + "/summary.json"))
losses = [event["loss"] for event in map(json.loads, open(output + "/metrics.jsonl")) if event["event"] == "eval" and "kind" not in event]
losses = losses or [event["loss"] for event in map(json.loads, open(output + "/metrics.jsonl")) if event["event"] == "train"]
cost = "no price" if summary["cost_usd"] is None else f"${summary['cost_usd']:.2f}"
row = "  {:<9} {:<15} {:<13} {:<12} {}"
print(row.format(name, "time", "cost", "it/s", "").rstrip())
print(row.format("  theirs", seed["time"], seed["cost"] or "not given", seed["rate"] or "not given", seed["source"]))
print(row.format("  here", f"{summary['wall_s']:.1f} s", cost, f"{summary['steps_per_s']:.2f} it/s",
                 f"{summary['tokens_per_s']:,.0f} tok/s, {summary['step']} steps, loss {losses[0]:.3f} before and {losses[-1]:.3f} after"
                 + ("" if device == "gpu" else ", a small model on a CPU")))
PYTHON
}

field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2], ""))' "$1" "$2"; }

run_job() { # job folder
  local folder="$1" job name command profile ranks quoted target code folders=() flags
  job="$(basename "$folder")"
  printf '%s: %s\n' "$job" "$(field "$folder/job.json" title)"
  while read -r name command profile ranks quoted; do
    eval "flags=($quoted)"  # our own words, quoted by shlex.join
    target="$output/$job/$name"
    mkdir -p "$output/$job"
    "$program" "$command" --profile "$folder/$profile" ${flags[@]+"${flags[@]}"} ${data[@]+"${data[@]}"} ${model[@]+"${model[@]}"} --output-dir "$target" \
      --overwrite --nproc "$ranks" >"$output/$job/$name.out" 2>"$output/$job/$name.log" </dev/null
    code=$?
    if [ $code -ne 0 ]; then
      printf '  %s FAILED with exit code %d; %s ends with:\n' "$name" $code "$output/$job/$name.log"
      tail -n 5 "$output/$job/$name.log" | sed 's/^/    /'
      return $code
    fi
    print_run "$folder" "$name" "$target" || return 1
    sed 's/^/    /' "$output/$job/$name.out"
    folders+=("$target")
  done < <(runs_of "$folder")
  [ ${#folders[@]} -gt 0 ] || return 1
  [ ${#folders[@]} -lt 2 ] || "$program" compare "${folders[@]}" | sed 's/^/  /'
}

read_arguments "$@"
find_program
TEACHER_PORT="${TEACHER_PORT:-$(free_port)}"
export TEACHER_PORT
jobs="$(jobs_of ${wanted[@]+"${wanted[@]}"})" || exit 2
status=0
for folder in $jobs; do
  run_job "$folder"
  code=$?
  [ $status -ne 0 ] || status=$code
done
exit $status
