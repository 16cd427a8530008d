#!/usr/bin/env bash
# Makes the lock files anew from setup.py. It needs uv (`pip install uv`).
#
#     bash requirements/lock.sh            all versions as new as setup.py allows
#     bash requirements/lock.sh --no-upgrade    only what setup.py has changed
set -euo pipefail
cd "$(dirname "$0")/.."
upgrade=--upgrade
[ "${1:-}" != --no-upgrade ] || upgrade=

# lock FILE PYTHON_VERSION [EXTRA]
lock() {
  local file=requirements/$1.txt
  UV_CUSTOM_COMPILE_COMMAND='bash requirements/lock.sh' uv pip compile \
    setup.py --extra test ${3:+--extra "$3"} --python-version "$2" \
    --no-emit-index-url --quiet $upgrade --output-file "$file"
  # Without GPUs, which is half the size. Its other packages are the same.
  [ "${3:-}" = gpu ] || sed -i 's/^tensorflow==/tensorflow-cpu==/' "$file"
  # What it asks for is in setup.py by name.
  grep -q '^tf-agents==' "$file" || echo 'tf-agents==0.19.0' >> "$file"
}

for version in 3.10 3.11 3.12 3.13; do
  lock "python$version" "$version"
  lock "gpu-python$version" "$version" gpu
done
# With Apache Beam some packages have other versions, and the manual needs many
# more, so they have their own files.
for version in 3.10 3.11; do
  lock "beam-python$version" "$version" beam
  lock "docs-python$version" "$version" docs
done

# lock_training FRAMEWORK PYTHON_VERSION PACKAGE...
# What trains on `random_access` needs no TensorFlow: the framework, and what
# reads an index.
lock_training() {
  local file=requirements/$1-python$2.txt version=$2
  shift 2
  printf '%s\n' absl-py dm-tree 'etils[epath]' numpy pillow "$@" |
    UV_CUSTOM_COMPILE_COMMAND='bash requirements/lock.sh' uv pip compile - \
      --python-version "$version" --no-emit-index-url --no-annotate --quiet \
      $upgrade --output-file "$file"
  # Without GPUs: the framework alone is 200 MB, and these are several GB.
  sed -i -E '/^(nvidia|cuda|triton)/d' "$file"
}

for version in 3.11 3.12 3.13; do
  lock_training torch "$version" torch==2.13.0
  lock_training jax "$version" jax grain
done

# lock_beside FRAMEWORK PACKAGE...
# The framework beside Reverb and TensorFlow, on Python 3.11.
lock_beside() {
  local file=requirements/reverb-$1-python3.11.txt framework=$1
  shift
  # TF-Agents asks for an older typing-extensions than PyTorch imports, and
  # works with a newer one; pip alone would take a PyTorch of 2023.
  UV_CUSTOM_COMPILE_COMMAND='bash requirements/lock.sh' uv pip compile \
    setup.py --extra test --extra "$framework" --python-version 3.11 \
    --override <(echo 'typing-extensions>=4.12') \
    --constraint <(grep -hv '^typing-extensions\|^tensorflow' \
      requirements/python3.11.txt; printf '%s\n' "$@") \
    --no-emit-index-url --no-annotate --quiet $upgrade --output-file "$file"
  sed -i -E 's/^tensorflow==/tensorflow-cpu==/; /^(nvidia|cuda|triton)/d' "$file"
}

lock_beside torch torch==2.13.0
lock_beside jax
