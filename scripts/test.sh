#!/usr/bin/env bash
# Runs all tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
TF_CPP_MIN_LOG_LEVEL=2 exec python -m pytest --numprocesses=2 --quiet "$@" tests
