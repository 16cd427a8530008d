#!/usr/bin/env bash
# Checks the format of the code with pyink, lints it with ruff, and checks its
# types with mypy. `--fix` lets pyink and ruff fix it. pyproject.toml has their
# settings.
set -euo pipefail
cd "$(dirname "$0")/.."

# The tools only read the code, so their environment has no TensorFlow.
tools='mypy==2.4.1 pyink==26.5.1 ruff==0.17.6'
venv=.venv-lint
if [ "$tools" != "$(cat "$venv/made_from" 2>/dev/null)" ]; then
  echo "Creating the environment $venv ..." >&2
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $tools
  echo "$tools" > "$venv/made_from"
fi

# Not other folders, such as environments.
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
    # The code blocks of CONTRIBUTING.md, which readers copy.
    blocks=$(mktemp -d)
    awk -v folder="$blocks" '/^```python$/ { file = folder "/" (++n) ".py"; next }
      /^```$/ { file = "" } file { print > file }' CONTRIBUTING.md
    # The blocks have no module docstring.
    "$venv/bin/ruff" check --config pyproject.toml --extend-ignore=D "$blocks"
    "$venv/bin/pyink" --quiet --check --diff --config pyproject.toml "$blocks"
    rm -r "$blocks" ;;
  *)
    echo 'Usage: bash scripts/lint.sh [--fix]' >&2
    exit 2 ;;
esac
"$venv/bin/mypy"
