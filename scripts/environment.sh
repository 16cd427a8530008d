# Makes the environment in .venv from requirements/tests.txt, if it is not there
# or not as setup.py says, and activates it. To be sourced, in the top folder of
# the repository.
#
# EXTRA=beam makes .venv-beam from requirements/beam.txt; EXTRA=docs,
# EXTRA=frameworks and EXTRA=recording work alike. PYTHON names the Python of a new
# environment, VENV its folder.
venv=${VENV:-.venv${EXTRA:+-$EXTRA}}
lock=requirements/${EXTRA:-tests}.txt
# Containers often set it. Without byte code each program compiles TensorFlow
# anew, which takes longer than most of them run.
unset PYTHONDONTWRITEBYTECODE

say() {
  echo "rlds2reverb: $*" >&2
}

fail() {
  say "$@"
  exit 1
}

# Prints 3.11 or the like, if that Python runs and may be used.
version_of() {
  "$1" -c 'import sys
if (3, 10) <= sys.version_info < (3, 14):
  print("%d.%d" % sys.version_info[:2])
else:
  sys.exit(1)' 2>/dev/null
}

# Those that have Reverb come first; uv may fetch one.
find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.10 uv python3 python3.12 python3.13}; do
    if [ "$name" = uv ]; then
      command -v uv >/dev/null && uv python install --quiet 3.11 2>/dev/null &&
        uv python find 3.11 2>/dev/null && return
    elif version_of "$name" >/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "needs Python 3.10 to 3.13, and ${PYTHON:-none} does not run here. On" \
    'Debian or Ubuntu: apt-get install python3 python3-venv. One that is not on' \
    'the PATH can be named: PYTHON=/path/to/python3.11. Where uv is on the' \
    'PATH, it fetches one.'
}

# Makes an empty environment; installs Debian's package for it where it must.
make_venv() {
  rm -rf "$venv"
  "$1" -m venv "$venv" >/dev/null 2>&1 && return
  local package
  package=python$(version_of "$1")-venv
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "Installing $package ..."
    apt-get -q update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -q \
      install -y --no-install-recommends "$package" >/dev/null
  fi
  rm -rf "$venv"
  "$1" -m venv "$venv" >/dev/null ||
    fail "$1 cannot make an environment. On Debian or Ubuntu, as root:" \
      "apt-get install $package."
}

make_environment() {
  local python
  python=$(find_python) || exit 1
  local gigabytes=2 module=tensorflow
  case "${EXTRA:-}" in
    frameworks) gigabytes=5 module=torch ;;
    recording) gigabytes=1 module=gymnasium ;;
  esac
  say "Making $venv from $lock with $python; it takes 1 to 3 minutes and" \
    "$gigabytes GB ..."
  case "$(version_of "$python")" in 3.12 | 3.13)
    say 'Reverb is there for Python 3.10 and 3.11 only. All works that needs no' \
      'Reverb server.' ;;
  esac
  make_venv "$python"
  # The lock file has every package, so that pip has nothing to resolve. Byte code
  # is made of what is imported; that of all would take pip half of its time.
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps \
    --no-compile --quiet --progress-bar off --use-pep517 --requirement "$lock" ||
    fail "could not install what $lock lists; pip says why above."
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --use-pep517 --editable . ||
    fail 'could not install rlds2reverb itself; pip says why above.'
  # So that processes that start together do not all make it.
  TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -c "import $module" ||
    fail "made an environment in which $module cannot be imported."
  made_from > "$venv/made_from"
}

made_from() {
  cksum setup.py "$lock"
}

[ "$(made_from)" = "$(cat "$venv/made_from" 2>/dev/null)" ] || make_environment
. "$venv/bin/activate"
