# Makes the environment in .venv, if it is not there or not as setup.py says,
# and activates it. To be sourced, in the top folder of the repository.

fail() {
  echo "rlds2reverb: $*" >&2
  exit 1
}

find_python() {
  local name
  for name in "${PYTHON:-}" python3.11 python3.10 python3.9 python3; do
    if [ -n "$name" ] && "$name" -c \
        'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))' \
        2>/dev/null; then
      echo "$name"
      return
    fi
  done
  fail "needs Python 3.9, 3.10 or 3.11, and found none. On Debian 12:" \
    "apt-get install python3 python3-venv. One that is not on the PATH can be" \
    "named: PYTHON=/path/to/python3.11"
}

make_environment() {
  local python
  python=$(find_python) || exit 1
  echo "Making the environment in .venv with $("$python" --version) ..." >&2
  rm -rf .venv
  if ! "$python" -m venv .venv 2>/dev/null; then
    rm -rf .venv
    # Debian has the module that venv needs in a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "Installing python3-venv ..." >&2
      apt-get -q update >/dev/null &&
        apt-get -q install -y --no-install-recommends python3-venv >/dev/null ||
        fail "could not install Debian's package python3-venv."
    fi
    "$python" -m venv .venv ||
      fail "$python cannot make an environment. On Debian:" \
        "apt-get install python3-venv"
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --editable '.[test]' ||
    fail "could not install what setup.py lists; pip says why above."
  cksum setup.py > .venv/made_from
}

[ "$(cksum setup.py)" = "$(cat .venv/made_from 2>/dev/null)" ] || make_environment
. .venv/bin/activate
