#!/usr/bin/env bash
# From a fresh clone to a trained adapter: installs missing packages, builds lora-train, trains LoRA on examples/orders,
# and shows loss, token accuracy and exact match on held-out examples before and after, and three answers side by side.
# Needs Debian 12, Python 3, and about 8 GB of disk. Safe to run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile=examples/orders/profile.yaml
held_out=examples/orders/heldout.jsonl
output=runs/orders
program=build/release/bin/lora-train
logs=build/quickstart
times=()

# Runs a step and records its time. Shows its stderr as progress; logs stdout and stderr.
step() { # name, sentence, command...
  local name="$1" started=$SECONDS
  printf '== %s\n' "$2"
  shift 2
  if ! { "$@" 2>&1 >&3 | tee "$logs/$name.log" >&2; } 3>"$logs/$name.out"; then
    tail -n 40 "$logs/$name.out" >&2
    printf 'quickstart: "%s" failed; its output is in %s/%s.out and .log\n' "$*" "$logs" "$name" >&2
    exit 1
  fi
  times+=("$(printf '%s %d s' "$name" $((SECONDS - started)))")
}

install() { scripts/install_deps.sh --no-test >&2; }
build() { cmake --preset release && cmake --build --preset release >&2; }

# A field of the JSON object in the first line of a file.
field() { python3 -c 'import json, sys; print(format(json.loads(open(sys.argv[1]).readline())[sys.argv[2]], sys.argv[3]))' "$@"; }

# Greedy answers to the first held-out questions, of the base and of the adapter.
ask() {
  head -n 3 "$held_out" >"$logs/questions.jsonl"
  "$program" generate --profile "$profile" --adapter "$output/adapter" --prompts "$logs/questions.jsonl" --compare
}

show_result() {
  local what
  printf '\n%-28s %10s %16s %14s\n' "$(wc -l <"$held_out") held-out orders" loss "token accuracy" "exact match"
  for what in before after; do
    printf '%-28s %10s %16s %14s\n' "  $what training" "$(field "$logs/$what.out" loss .4f)" \
      "$(field "$logs/$what.out" token_accuracy .1%)" "$(field "$logs/$what.out" exact_match .1%)"
  done
  printf '\nThree of them, answered before (base) and after (adapter)\n\n'
  cat "$logs/answers.out"
  cat <<END

Files
  $output/adapter/         the adapter, as PEFT, vLLM and llama.cpp read it
  $output/metrics.jsonl    loss, rate, tokens per second of every step
  $output/summary.json     the run in one object
  $output/profile.yaml     every setting that was used

Next
  $program train $profile --lora-r 8 --output-dir $output-r8
  $program tokenize --profile $profile --show 2
  $program generate --profile $profile --adapter $output/adapter --prompt "Ms Ortega from Lisbon ordered 7 lamps for 84.50 euros, delivery on 3 May."
  $program --help
  README.md, "Your own data"
  scripts/test.sh                 every test that needs no GPU
END
}

main() {
  local between="" entry
  mkdir -p "$logs"
  step install "installing what is missing (the first time: torch and its libraries)" install
  step build "building lora-train" build
  step before "evaluating the base model on held-out orders" "$program" eval --profile "$profile" --exact-match --json
  step train "training LoRA" "$program" train "$profile" --overwrite --json
  step after "evaluating the adapter on the same orders" \
    "$program" eval --profile "$profile" --adapter "$output/adapter" --exact-match --json
  step answers "asking the base and the adapter" ask
  show_result
  printf '\nquickstart: done in %d min %d s (' $((SECONDS / 60)) $((SECONDS % 60))
  for entry in "${times[@]}"; do
    printf '%s%s' "$between" "$entry"
    between=", "
  done
  printf ')\n'
}

main "$@"
