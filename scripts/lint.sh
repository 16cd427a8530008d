#!/usr/bin/env bash
# Checks the form of the code with pyink, what is odd in it with ruff, and its
# types with mypy; `--fix` fixes what pyink and ruff can. Their settings are in
# pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

# They only read the code, so they have a small environment without TensorFlow.
tools='mypy==2.4.1 pyink==26.5.1 ruff==0.17.6'
venv=.venv-lint
if [ "$tools" != "$(cat "$venv/made_from" 2>/dev/null)" ]; then
  echo "Making the environment in $venv ..." >&2
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $tools
  echo "$tools" > "$venv/made_from"
fi

# Not what else lies in the folder, such as environments of other names.
code='benchmarks configs docs examples rlds2reverb scripts setup.py tests tools'
# shellcheck disable=SC2086
case "${1:-}" in
  --fix)
    "$venv/bin/pyink" --quiet $code
    "$venv/bin/ruff" check --fix $code ;;
  '')
    "$venv/bin/ruff" check $code
    "$venv/bin/pyink" --quiet --check --diff $code || {
      echo 'bash scripts/lint.sh --fix fixes this.' >&2
      exit 1
    }
    # The blocks that CONTRIBUTING.md gives to be copied.
    blocks=$(mktemp -d)
    awk -v folder="$blocks" '/^```python$/ { file = folder "/" (++n) ".py"; next }
      /^```$/ { file = "" } file { print > file }' CONTRIBUTING.md
    # They are excerpts, without the docstrings of a module.
    "$venv/bin/ruff" check --config pyproject.toml --extend-ignore=D "$blocks"
    "$venv/bin/pyink" --quiet --check --diff --config pyproject.toml "$blocks"
    rm -r "$blocks" ;;
  *)
    echo 'Usage: bash scripts/lint.sh [--fix]' >&2
    exit 2 ;;
esac
"$venv/bin/mypy"
