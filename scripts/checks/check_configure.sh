#!/usr/bin/env bash
# Checks installing and configuring on machines unlike this one: a configuration that failed without torch works once
# torch is installed, and an nvcc from another CUDA than torch's is not used. Needs .deps (scripts/install_deps.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root="$PWD"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

fail() { printf 'check_configure: FAILED: %s\n' "$*" >&2; cat "$folder/log" >&2; exit 1; }

# Links to the sources, without .deps.
mkdir "$folder/source" "$folder/bin"
for entry in CMakeLists.txt bench cmake configs include scripts src tests; do ln -s "$root/$entry" "$folder/source/"; done
configure() { cmake -S "$folder/source" -B "$folder/build" -G Ninja >"$folder/log" 2>&1; }

! configure || fail "configured without LibTorch"
ln -s "$root/.deps" "$folder/source/.deps"
configure || fail "a configuration that failed once fails for ever"
[ "$(grep -c -e 'CUDA [0-9.]* found: ' -e 'CPU-only build: ' "$folder/log")" = 1 ] || fail "the outcome for CUDA is not said in one line"

# shellcheck source=scripts/install_deps.sh
source scripts/install_deps.sh
fake_nvcc() { # release
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$1" "$1" >"$folder/bin/nvcc"
  chmod +x "$folder/bin/nvcc"
}
PATH="$folder/bin:$PATH"
for release in 12.4 13.5 "$CUDA_SERIES"; do
  fake_nvcc "$release"
  configure || fail "configure with nvcc $release"
  if [ "$release" = "$CUDA_SERIES" ]; then
    [ "$(nvcc_of_machine)" = "$folder/bin/nvcc" ] || fail "install_deps passes over nvcc $release"
    grep -q "CUDA $CUDA_SERIES found: $folder/bin/nvcc" "$folder/log" || fail "cmake passes over nvcc $release"
  else
    [ "$(nvcc_of_machine)" != "$folder/bin/nvcc" ] || fail "install_deps takes nvcc $release"
    ! grep -q "found: $folder/bin/nvcc" "$folder/log" || fail "cmake takes nvcc $release"
  fi
done

# The headers that come with nvcc, if its wheels are the toolkit: .deps/cuda/bin is a link.
mkdir -p "$folder/wheels/nvidia/cu13/bin" "$folder/wheels/nvidia/cu13/include/crt"
mv "$folder/bin/nvcc" "$folder/wheels/nvidia/cu13/bin/"
ln -s nvidia/cu13/bin "$folder/wheels/bin"
touch "$folder/wheels/nvidia/cu13/include/crt/host_defines.h"
PATH="$folder/wheels/bin:$PATH"
configure || fail "configure with nvcc of its wheels"
grep -q -e "-isystem $folder/wheels/nvidia/cu13/include" "$folder/build/build.ninja" || fail "crt/host_defines.h of nvcc's wheels is not seen"
printf 'check_configure: passed\n'
