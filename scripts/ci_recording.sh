#!/usr/bin/env bash
# Runs the tests that record from Atari, dm_control and Gymnasium-Robotics.
# `--make` only creates the environments.
set -euo pipefail
cd "$(dirname "$0")/.."
(EXTRA=recording && . scripts/environment.sh)
. scripts/environment.sh
[ "${1:-}" != --make ] || exit 0
TF_CPP_MIN_LOG_LEVEL=2 MUJOCO_GL=disable \
  PYTHONPATH=$(echo "$PWD"/.venv-recording/lib/*/site-packages) \
  exec python -m pytest --quiet tests/datasets/environment_packages_test.py
