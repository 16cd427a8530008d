#!/usr/bin/env bash
# Runs the tests that need no Reverb server, on Python 3.12 or 3.13: PYTHON, or
# the first of the two on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${PYTHON:-}" ]; then
  for python in python3.12 python3.13 ~/.pyenv/versions/3.1[23]*/bin/python; do
    if "$python" --version >/dev/null 2>&1; then
      PYTHON=$python
      break
    fi
  done
fi
if [ -z "${PYTHON:-}" ]; then
  echo 'Cannot find Python 3.12 or 3.13. Set PYTHON=/path/to/python.' >&2
  exit 1
fi

VENV=.venv-without-reverb
. scripts/environment.sh
# `--make` only creates the environment.
[ "${1:-}" != --make ] || exit 0
TF_CPP_MIN_LOG_LEVEL=2 exec python -m pytest --numprocesses=3 --quiet \
  -m 'not long' "$@" tests/without_reverb_test.py tests/episodes \
  tests/statistics tests/replay/checkpoint tests/replay/opening_test.py \
  tests/datasets/array_record_test.py tests/datasets/loading_test.py
