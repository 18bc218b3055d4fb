#!/usr/bin/env bash
# Installs a build into a folder in release form: stripped, without paths of this machine, with the licences of all its
# libraries, and checked to run on other machines. scripts/make_wheel.sh and scripts/make_release.sh pack such a folder.
#
#   scripts/stage_program.sh [--build DIR] [--without-cuda] FOLDER
#
#   --build DIR     the build to install, as is (default build/release, which is updated first)
#   --without-cuda  omit the CUDA library
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/dependencies.sh

build="" with_cuda=true folder=""
die() { printf 'stage_program: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case "$1" in
    --build) [ $# -ge 2 ] || die "--build needs a folder"; build="$2"; shift ;;
    --without-cuda) with_cuda=false ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) die "unknown argument \"$1\". Expected --build and --without-cuda" ;;
    *) folder="$1" ;;
  esac
  shift
done
[ -n "$folder" ] || die "name the folder to install into"

if [ -z "$build" ]; then
  build=build/release
  scripts/install_deps.sh --no-test >&2
  cmake --preset release >&2
  cmake --build --preset release >&2
fi
[ -e "$build/cmake_install.cmake" ] || die "no build in $build"
cmake --install "$build" --prefix "$folder" --strip >/dev/null || die "$build is not fully built: cmake --build $build"
program="$folder/lib/lora-train"
rm -f "$program"/lib/*_path
$with_cuda || rm -rf "$program/lib/liblora_train_cuda.so" "$folder/share/doc/lora-train/third-party/nvidia-cudnn-frontend"

licenses=(LICENSE "${DEBIAN_LIBRARIES[@]/#/third-party/}")
[ ! -e "$program/lib/liblora_train_cuda.so" ] || licenses+=(third-party/nvidia-cudnn-frontend)
for file in "${licenses[@]}"; do
  [ -e "$folder/share/doc/lora-train/$file" ] || die "no licence of ${file#third-party/}: scripts/install_deps.sh, then configure again"
done
for file in lora-train lib/liblora_train_engine.so lib/libsentencepiece.so.0 lib/sweep.sh configs/h100.yaml configs/gpus.json; do
  [ -e "$program/$file" ] || die "$build has no $file"
done
scripts/checks/check_portable.py "$folder" >&2 || die "the program would not run on another machine"
