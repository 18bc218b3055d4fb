#!/usr/bin/env bash
# Writes docs/profile.md from the declarations in src/config, the JSON twins of configs/*.yaml, and the plan figures in
# their heads. Usage: scripts/make_profile_docs.sh [build folder]
set -euo pipefail
cd "$(dirname "$0")/.."
build="${1:-build/dev}"
cmake --build "$build" --target config_test run_test
export LORA_TRAIN_UPDATE_DOCS=1
"$build/bin/config_test" --gtest_filter='Reference.CommittedDocumentationIsTheGeneratedOne:Shipped.JsonTwins*'
"$build/bin/run_test" --gtest_filter='ForecastTest.TheHeads*'
echo "docs/profile.md and configs/ are up to date"
