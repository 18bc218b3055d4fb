#!/usr/bin/env bash
# Makes one archive of the program, its tests and scripts/gpu_check.sh, for a machine with a GPU, Ubuntu 22.04 or 24.04 and
# the torch 2.11 wheel. That machine needs no compiler, network or repository.
#
#   scripts/make_bundle.sh [--out FILE] [--build DIR] [--no-build] [--level N] [--limit BYTES] [--with-nccl FILE]
#
#   --out FILE     the archive (default build/lora-train-bundle.tar.xz)
#   --build DIR    the build to pack (default build/gpu, from the preset gpu: only sm_90); build/dev has code for more GPUs
#   --no-build     pack the build as is, without updating it
#   --level N      xz level, 0 (fast) to 9 (default 6)
#   --limit BYTES  of the archive (default 40000000)
#   --with-nccl FILE  also write a second archive, with NCCL 2.30 from PyPI (needs the network; 216 MB): it lets several ranks
#                  share a GPU, with NCCL_MULTI_RANK_GPU_ENABLE=1 and its folder first in LD_LIBRARY_PATH
#
# Fails, and leaves no archive, if a file would not run on Ubuntu 22.04 (scripts/checks/check_portable.py), the CUDA library
# lacks code for an architecture that the program names, or the archive is over its limit. On the other machine:
#
#   tar xf lora-train-bundle.tar.xz && lora-train-bundle/scripts/gpu_check.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

max_bytes=40000000
name=lora-train-bundle
out=build/$name.tar.xz
build=build/gpu
is_built=false
level=6
python="${PYTHON:-.deps/venv/bin/python}"
nccl="" nccl_wheel='nvidia-nccl-cu13>=2.30,<2.31'
# The programs with tests that also run on a GPU, and those that drive the engine.
programs=(lora-train lora-train-probe lora-train-generate-probe kernels_test optim_test model_test run_test lora_test cuda_test
  native_kernels_test cuda_kernels_test gpu_bench sanitizer_control)
libraries=(liblora_train_engine.so liblora_train_cuda.so libcount_cuda_calls.so librecord_cuda_kernels.so libsentencepiece.so.0 liblora_train_arrow.so)
scripts=(scripts/gpu_check.sh scripts/sweep.sh scripts/checks/check_portable.py tests/gpu/*.py tests/gpu/goals.json
  tests/parity/engine.py tests/parity/family_case.py tests/parity/oracle.py tests/parity/random_case.py
  tests/support/fork_server.py bench/gpu_measure.py bench/compare_hf_gpu.py bench/hf_steps.py configs docs/compare.md
  docs/images docs/gpu.md docs/gpu_owed.md LICENSE)
example=(examples/tiny-math/model examples/tiny-math/profile.yaml examples/tiny-math/train.jsonl
  examples/tiny-math/heldout.jsonl)

die() { printf 'make_bundle: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case "$1" in
    --out) [ $# -ge 2 ] || die "--out needs a file"; out="$2"; shift ;;
    --build) [ $# -ge 2 ] || die "--build needs a folder"; build="$2"; shift ;;
    --no-build) is_built=true ;;
    --level) [ $# -ge 2 ] || die "--level needs a number"; level="$2"; shift ;;
    --limit) [ $# -ge 2 ] || die "--limit needs a number"; max_bytes="$2"; shift ;;
    --with-nccl) [ $# -ge 2 ] || die "--with-nccl needs a file"; nccl="$2"; shift ;;
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument \"$1\". Expected --out, --build, --no-build, --level, --limit and --with-nccl" ;;
  esac
  shift
done

bring_up_to_date() {
  [ -e "$build/CMakeCache.txt" ] || cmake --preset "$(basename "$build")" >&2
  cmake --build "$build" --target "${programs[@]}" lora_train_engine lora_train_cuda lora_train_arrow count_cuda_calls \
    record_cuda_kernels >&2
}

check_cuda_code() {
  local named held code
  named="$("$build/bin/lora-train" --version | sed -n 's/^GPU architectures: //p')"
  held="$("$python" scripts/checks/check_kernel_code.py --architectures "$build/bin/lib/liblora_train_cuda.so")" || die "$held"
  for code in $named; do
    [[ " $held " == *" $code "* ]] || die "the program names $code, but liblora_train_cuda.so has code only for $held"
  done
}

# Excludes lib/torch_path and lib/arrow_path: they name folders of this machine.
copy_files() { # folder
  local file
  mkdir -p "$1/bin/lib"
  for file in "${programs[@]}"; do
    [ -x "$build/bin/$file" ] || die "no $build/bin/$file: build first, or omit --no-build"
    cp "$build/bin/$file" "$1/bin/"
  done
  for file in "${libraries[@]}"; do
    [ -e "$build/bin/lib/$file" ] ||
      die "no $build/bin/lib/$file. The CUDA library needs nvcc, the Parquet library pyarrow: scripts/install_deps.sh"
    cp "$build/bin/lib/$file" "$1/bin/lib/"
  done
  cp -r "$build/bin/configs" "$1/bin/"
  cp -r --parents "${scripts[@]}" "${example[@]}" "$1/"
}

# Liger, which bench/hf_steps.py imports: pure Python, and not on the other machine.
copy_packages() { # folder
  "$python" - "$1/packages" <<'PY' || die "no liger-kernel: scripts/install_deps.sh"
import importlib.metadata, pathlib, shutil, sys
for file in importlib.metadata.files("liger-kernel"):
    if file.suffix != ".pyc" and ".." not in file.parts:
        target = pathlib.Path(sys.argv[1], file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.locate(), target)
PY
}

# The tests contain the path of this machine's torch; there, gpu_check.sh and LD_LIBRARY_PATH replace it.
make_portable() { # folder
  local file
  printf 'file(RPATH_REMOVE FILE "${FILE}")\n' >"$1.cmake"
  for file in "$1"/bin/* "$1"/bin/lib/*.so; do
    [ -f "$file" ] || continue
    strip "$file"
    readelf -d "$file" | grep -qF '$ORIGIN' || cmake -DFILE="$file" -P "$1.cmake" >/dev/null
  done
  scripts/checks/check_portable.py "$1" || die "the bundle would not run on another machine"
}

# The commit is the program's, which it reports itself.
describe() { # folder
  printf 'program: %s\nbuilt on: %s, %s\ndate: %s\n' "$("$build/bin/lora-train" --version | head -n 1)" \
    "$(. /etc/os-release && echo "$PRETTY_NAME")" "$(ldd --version | head -n 1)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
    >"$1/BUNDLE"
}

# Only NCCL's library and licence; the wheel itself is five times the bundle's limit.
pack_nccl() { # archive
  local work
  work="$(mktemp -d)"
  "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "$nccl_wheel" >&2 &&
    "$python" - "$work" <<'PY' || die "no NCCL: $nccl_wheel"
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
(folder / "nccl").mkdir()
for name in wheel.namelist():
    if name.endswith("/libnccl.so.2") or "icense" in name:
        (folder / "nccl" / pathlib.Path(name).name).write_bytes(wheel.read(name))
assert (folder / "nccl/libnccl.so.2").exists(), wheel.namelist()
PY
  tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -cf - nccl | xz -T0 "-$level" >"$1"
  rm -rf "$work"
  printf '%s: %s bytes\n' "$1" "$(stat -c %s "$1")"
}

$is_built || bring_up_to_date
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
copy_files "$folder/$name"
check_cuda_code
copy_packages "$folder/$name"
make_portable "$folder/$name"
describe "$folder/$name"
mkdir -p "$(dirname "$out")"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$folder" -cf - "$name" | xz -T0 "-$level" >"$folder/archive"
bytes="$(stat -c %s "$folder/archive")"
[ "$bytes" -le "$max_bytes" ] || die "the archive has $bytes bytes; the limit is $max_bytes"
mv "$folder/archive" "$out"
printf '%s: %s bytes\n' "$out" "$bytes"
[ -z "$nccl" ] || pack_nccl "$nccl"
