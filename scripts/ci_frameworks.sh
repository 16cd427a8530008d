#!/usr/bin/env bash
# Runs the tests of PyTorch and JAX loops, first without and then with TensorFlow.
# `--make` only creates the environments.
set -euo pipefail
cd "$(dirname "$0")/.."
(EXTRA=frameworks && . scripts/environment.sh)
. scripts/environment.sh
[ "${1:-}" != --make ] || exit 0
export TF_CPP_MIN_LOG_LEVEL=2
python=$PWD/.venv-frameworks/bin/python
TORCH_PYTHON=$python JAX_PYTHON=$python \
  python -m pytest --quiet tests/random_access/frameworks_test.py
# Adds the frameworks to the environment of the tests.
PYTHONPATH=$(echo "$PWD"/.venv-frameworks/lib/*/site-packages) \
  python -m pytest --quiet tests/random_access/frameworks_test.py
