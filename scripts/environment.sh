# shellcheck shell=bash
# Creates the environment .venv from requirements/tests.txt, if it does not exist
# or setup.py or the requirements have changed, and activates it. Source it in the
# root of the repository.
#
# EXTRA=beam creates .venv-beam from requirements/beam.txt; so do EXTRA=docs,
# EXTRA=frameworks and EXTRA=recording. PYTHON is the Python of a new environment,
# and VENV its folder.
venv=${VENV:-.venv${EXTRA:+-$EXTRA}}
lock=requirements/${EXTRA:-tests}.txt
# Containers often set it. Without cached byte code, each program compiles
# TensorFlow again, which takes longer than most programs.
unset PYTHONDONTWRITEBYTECODE

say() {
  echo "rlds2reverb: $*" >&2
}

fail() {
  say "$@"
  exit 1
}

# Prints the version of a Python, such as 3.11, if it runs and is supported.
version_of() {
  "$1" -c 'import sys
if (3, 10) <= sys.version_info < (3, 14):
  print("%d.%d" % sys.version_info[:2])
else:
  sys.exit(1)' 2>/dev/null
}

# Prefers versions with Reverb. uv may download one.
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
    'Debian or Ubuntu, run: apt-get install python3 python3-venv. If it is not' \
    'on the PATH, set PYTHON=/path/to/python3.11. If uv is on the PATH, it' \
    'downloads Python.'
}

# Creates an empty environment, and installs Debian's package for it if needed.
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
    fail "$1 cannot create an environment. On Debian or Ubuntu, run as root:" \
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
  say "Creating $venv from $lock with $python. It takes 1 to 3 minutes and" \
    "$gigabytes GB ..."
  case "$(version_of "$python")" in 3.12 | 3.13)
    say 'Reverb supports only Python 3.10 and 3.11. Everything else works' \
      'without it.' ;;
  esac
  make_venv "$python"
  # The lock file lists every package, so pip resolves nothing. Python compiles
  # modules when they are imported; compiling all would double the time.
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps \
    --no-compile --quiet --progress-bar off --use-pep517 --requirement "$lock" ||
    fail "could not install the packages in $lock; see pip's error above."
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --use-pep517 --editable . ||
    fail "could not install rlds2reverb; see pip's error above."
  # Compiles it once, before several processes start together.
  TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -c "import $module" ||
    fail "created an environment in which $module cannot be imported."
  made_from > "$venv/made_from"
}

made_from() {
  cksum setup.py "$lock"
}

[ "$(made_from)" = "$(cat "$venv/made_from" 2>/dev/null)" ] || make_environment
. "$venv/bin/activate"
