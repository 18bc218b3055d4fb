#!/usr/bin/env bash
# Writes docs/profile.md from the declarations in src/config. Usage: scripts/make_profile_docs.sh [build folder]
set -euo pipefail
cd "$(dirname "$0")/.."
build="${1:-build/dev}"
cmake --build "$build" --target config_test
LORA_TRAIN_UPDATE_DOCS=1 "$build/bin/config_test" --gtest_filter='Reference.CommittedDocumentationIsTheGeneratedOne'
echo "docs/profile.md is up to date"
