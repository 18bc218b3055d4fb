#!/usr/bin/env bash
# Installs everything to build, run and test lora-train on a machine with only Debian 12 and Python 3: Debian packages,
# PyPI wheels in .deps/venv, and nvcc. Names and versions are in scripts/dependencies.sh.
# Safe to run again: it skips everything already installed, and a second run takes about a second.
#
#   scripts/install_deps.sh             everything
#   scripts/install_deps.sh --no-test   only the packages for building and running
#   scripts/install_deps.sh --packages  only Debian packages: enough for the modules without torch
#   scripts/install_deps.sh --dev       also the packages for the pre-commit hooks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/dependencies.sh

deps="$PWD/.deps"
with_test=1

say() { printf 'install_deps: %s\n' "$*"; }
die() { printf 'install_deps: error: %s\n' "$*" >&2; exit 1; }

# The Debian packages among the arguments that are not installed, one per line.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || printf '%s\n' "$package"
  done
}

install_debian() {
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  if [ "${#missing[@]}" -eq 0 ]; then
    say "Debian packages: all $# are installed"
    return
  fi
  command -v apt-get >/dev/null || die "no apt-get here. Install these by hand, then run this again: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo. As root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Debian packages: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Python compiles what it imports; to compile 13,600 files that pip unpacks takes 40 s.
pip_install() { "$deps/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@"; }

# The stamp records the versions from scripts/dependencies.sh in a folder, and whether it includes those for tests.
is_stamped() { [ -f "$1" ] && grep -qxF "$2" "$1"; }

install_wheels() {
  local hash stamp="$deps/venv/lora-train-stamp" python=/usr/bin/python3 wheels=("${PYPI_BUILD[@]}") kind=build
  hash="$(sha256sum scripts/dependencies.sh | cut -d' ' -f1)"
  [ "$with_test" = 0 ] || { wheels+=("${PYPI_TEST[@]}"); kind=all; }
  if is_stamped "$stamp" "$hash all" || is_stamped "$stamp" "$hash $kind"; then
    say "PyPI wheels: $deps/venv is up to date"
    return
  fi
  [ -x "$python" ] || python="$(command -v python3)" || die "no python3 found"
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    die "$("$python" -V) found, Python 3.11 or 3.12 is needed"
  [ -x "$deps/venv/bin/pip" ] || "$python" -m venv "$deps/venv"
  say "PyPI wheels: installing ${wheels[*]} into $deps/venv (torch brings about 3 GB of libraries the first time)"
  pip_install "${wheels[@]}"
  printf '%s %s\n' "$hash" "$kind" >"$stamp"
}

# Fills $1 with nvcc from its wheels, so that $1/bin/nvcc compiles and links.
install_nvcc_wheels() {
  mkdir -p "$1"
  pip_install --no-deps --upgrade --target "$1" "${PYPI_NVCC[@]}" ||
    return 1
  local root="nvidia/cu${CUDA_SERIES%%.*}"
  [ -x "$1/$root/bin/nvcc" ] || return 1
  ln -sfn "$root/bin" "$1/bin"
  ln -sfn lib "$1/$root/lib64"  # where nvcc.profile looks
}

nvcc_release() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }

# The machine's own nvcc, if it is from torch's CUDA. Another series compiles but clashes at run time.
nvcc_of_machine() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [ -x "$nvcc" ] && [ "$(nvcc_release "$nvcc")" = "$CUDA_SERIES" ]; then
      printf '%s\n' "$nvcc"
      return
    fi
  done
}

install_nvcc() {
  local nvcc hash stamp="$deps/cuda/lora-train-stamp"
  nvcc="$(nvcc_of_machine)"
  if [ -n "$nvcc" ]; then
    say "nvcc: $nvcc ($CUDA_SERIES)"
    return
  fi
  hash="$(sha256sum scripts/dependencies.sh | cut -d' ' -f1)"
  if is_stamped "$stamp" "$hash"; then
    say "nvcc: $deps/cuda/bin/nvcc is up to date"
  elif install_nvcc_wheels "$deps/cuda"; then
    printf '%s\n' "$hash" >"$stamp"
    say "nvcc: no CUDA $CUDA_SERIES toolkit on this machine, so nvcc came from its wheels: $deps/cuda/bin/nvcc"
  else
    say "nvcc: neither a CUDA $CUDA_SERIES toolkit nor its wheels are available; the build will be CPU-only"
  fi
}

# nvcc without these headers cannot build the CUDA library, so they are installed with it.
install_cudnn_frontend() {
  local folder="$deps/cudnn-frontend"
  if is_stamped "$folder/lora-train-stamp" "$PYPI_CUDNN_FRONTEND" && [ -d "$folder/licenses" ]; then
    say "cuDNN frontend: $folder is up to date"
    return
  fi
  rm -rf "$folder.new" "$folder"
  if pip_install --no-deps --target "$folder.new" "$PYPI_CUDNN_FRONTEND" &&
    [ -f "$folder.new/include/cudnn_frontend.h" ]; then
    mkdir "$folder"
    mv "$folder.new/include" "$folder.new"/*.dist-info/licenses "$folder/"
    printf '%s\n' "$PYPI_CUDNN_FRONTEND" >"$folder/lora-train-stamp"
    say "cuDNN frontend: $PYPI_CUDNN_FRONTEND"
  else
    say "cuDNN frontend: $PYPI_CUDNN_FRONTEND is not available; the build will be CPU-only"
  fi
  rm -rf "$folder.new"
}

main() {
  local started=$SECONDS packages=("${DEBIAN_BUILD[@]}") only_packages=0
  while [ $# -gt 0 ]; do
    case "$1" in
      --no-test) with_test=0 ;;
      --packages) only_packages=1 ;;
      --dev) packages+=("${DEBIAN_DEV[@]}") ;;
      -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
      *) die "unknown argument \"$1\". Expected --no-test, --packages and --dev" ;;
    esac
    shift
  done
  [ "$with_test" = 0 ] || packages+=("${DEBIAN_TEST[@]}")
  install_debian "${packages[@]}"
  [ "$only_packages" = 0 ] || return 0
  install_wheels
  install_nvcc
  install_cudnn_frontend
  say "done in $((SECONDS - started)) s"
}

# Sourcing defines the functions without running them.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  main "$@"
fi
