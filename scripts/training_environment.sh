#!/usr/bin/env bash
# Makes an environment that trains on `random_access` without TensorFlow, in
# .venv-torch or .venv-jax: bash scripts/training_environment.sh torch
set -euo pipefail
cd "$(dirname "$0")/.."
framework=$1
python=${PYTHON:-python3.11}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
lock=requirements/$framework-python$version.txt
venv=.venv-$framework
[ "$(cksum "$lock")" = "$(cat "$venv/made_from" 2>/dev/null)" ] && exit
rm -rf "$venv"
"$python" -m venv "$venv"
# The lock file has all that is needed on a machine without GPUs.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --requirement "$lock"
cksum "$lock" > "$venv/made_from"
