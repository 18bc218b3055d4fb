#!/usr/bin/env bash
# Checks the layout of all C++ and CUDA sources against .clang-format.
#   scripts/checks/check_format.sh [--fix]
# --fix rewrites them. Needs clang-format 14, as in Debian 12: other versions format differently.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

options=(--dry-run -Werror)
case "${1-}" in
  "") ;;
  --fix) options=(-i) ;;
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) printf 'check_format: unknown argument "%s". Expected --fix\n' "$1" >&2; exit 2 ;;
esac
clang_format="$(command -v clang-format-14 || command -v clang-format || true)"
case "$([ -z "$clang_format" ] || "$clang_format" --version)" in
  *"version 14."*) ;;
  *) echo "check_format: no clang-format 14; scripts/install_deps.sh installs it" >&2; exit 2 ;;
esac
mapfile -d '' files < <(find src include tests bench -type f \
  \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -not -path 'tests/fuzz/corpus/*' -print0)
[ ${#files[@]} -gt 0 ] || { echo "check_format: found no sources" >&2; exit 2; }
"$clang_format" --style=file "${options[@]}" "${files[@]}"
printf 'check_format: %d files\n' ${#files[@]}
