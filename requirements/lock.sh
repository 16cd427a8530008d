#!/usr/bin/env bash
# Makes the lock files from setup.py, each for all Pythons that have its
# packages. It needs uv (`pip install uv`).
#
#     bash requirements/lock.sh            all versions as new as setup.py allows
#     bash requirements/lock.sh --no-upgrade    only what setup.py has changed
#
# They are installed without dependencies, as they list every package.
set -euo pipefail
cd "$(dirname "$0")/.."
upgrade=--upgrade
[ "${1:-}" != --no-upgrade ] || upgrade=

# lock FILE USE ARGUMENTS... writes a lock file whose first line says its use.
lock() {
  local file=requirements/$1.txt use=$2
  # Without GPUs, whose libraries take several GB. Nothing else differs. But
  # PyTorch's wheel on PyPI cannot be imported without the libraries of NVIDIA.
  local dropped='nvidia|cuda|triton'
  [ "$1" != frameworks ] || dropped='cuda|triton'
  shift 2
  uv pip compile --universal --no-emit-index-url --no-annotate --no-header \
    --quiet $upgrade --output-file "$file" "$@"
  sed -i -E "s/^tensorflow==/tensorflow-cpu==/; /^($dropped)/d" "$file"
  sed -i "1i # $use Made by requirements/lock.sh." "$file"
}

# lock_library FILE USE EXTRA...
lock_library() {
  local file=$1 use=$2
  shift 2
  # shellcheck disable=SC2046
  lock "$file" "$use" setup.py --python-version 3.10 $(printf ' --extra %s' "$@")
  # For Python 3.12 and 3.13; what it asks for is in setup.py by name.
  sed -i -E 's/^tf-agents==.*/tf-agents==0.19.0/' "requirements/$file.txt"
}

lock_library tests 'The library and its tests.' test
lock_library beam 'The packages of tests.txt and Apache Beam, which requires other versions.' \
  test beam
lock_library docs 'The packages of tests.txt and the tools that build the manual.' test docs
# TF-Agents asks for an older typing-extensions than PyTorch does, and works with
# a newer one.
printf '%s\n' absl-py dm-tree 'etils[epath]' grain jax numba numpy pillow torch==2.13.0 |
  lock frameworks 'PyTorch and JAX, alone or on top of tests.txt.' - \
    --python-version 3.11 --constraint <(
      grep -v '^#\|^typing-extensions\|^tensorflow-cpu' requirements/tests.txt
    )
printf '%s\n' ale-py==0.12.1 dm_control==1.0.50 gymnasium-robotics==1.4.2 \
  mujoco==3.17.0 |
  lock recording 'Environments for recording episodes, on top of tests.txt.' - \
    --python-version 3.10 --constraint <(
      grep -v '^#\|^typing-extensions\|^tensorflow-cpu' requirements/tests.txt
    )
