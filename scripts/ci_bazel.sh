#!/usr/bin/env bash
# Analyzes all targets with Bazel, runs three tests and the main job.
set -euo pipefail
cd "$(dirname "$0")/.."
# Bazel runs the python3 on the PATH.
. scripts/environment.sh
trap 'bazel shutdown' EXIT
bazel build --nobuild //...
# pytest runs all tests. These three show that tests run under Bazel, too.
bazel test //tests:imports_test //tests:windows/draws_test \
  //tests:replay/sequences_test
# Relative paths start at the user's working directory.
work=$(mktemp -d -p scripts)
(
  cd "$work"
  bazel run //scripts:record_episodes -- --num_episodes=2 --directory=cartpole
  bazel run //scripts:convert -- --dataset=cartpole --checkpoint_dir=checkpoint
)
test -f "$work/cartpole/features.json"
test -n "$(find "$work/checkpoint" -name DONE)"
rm -r "$work"
