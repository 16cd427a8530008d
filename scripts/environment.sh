# Makes the environment in .venv, if it is not there or not as setup.py says,
# and activates it. To be sourced, in the top folder of the repository.
#
# With EXTRA=beam it is another one, in .venv-beam, which has that extra too.
venv=.venv${EXTRA:+-$EXTRA}
locks=requirements/${EXTRA:+$EXTRA-}python

fail() {
  echo "rlds2reverb: $*" >&2
  exit 1
}

# The newest Python for which there is a lock file.
find_python() {
  local name version
  set -- python3.11 python3.10 python3
  [ -z "${PYTHON:-}" ] || set -- "$PYTHON"
  for name in "$@"; do
    version=$("$name" -c \
      'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if [ -f "$locks$version.txt" ]; then
      echo "$name"
      return
    fi
  done
  [ -z "${PYTHON:-}" ] ||
    fail "needs Python 3.10 or 3.11, but PYTHON=$PYTHON is" \
      "${version:-no Python that runs}."
  fail "needs Python 3.10 or 3.11, and found none. On Debian 12:" \
    "apt-get install python3 python3-venv. One that is not on the PATH can be" \
    "named: PYTHON=/path/to/python3.11"
}

# Shows which of the packages of a lock file pip is at, from what pip prints.
show_progress() {
  local total step what line count=0
  total=$(grep -c '^[^ #]' "$1")
  while read -r step what _; do
    case "$step" in
      Collecting | Processing)
        count=$((count + 1))
        line="  $count of $total: ${what##*/}"
        # One line on a terminal; in a log one for every ten.
        if [ -t 2 ]; then
          printf '\r\033[K%s' "$line" >&2
        elif [ $((count % 10)) = 0 ]; then
          echo "$line" >&2
        fi ;;
      Installing)
        # pip says so of what builds a package, too.
        [ "$what" = collected ] || continue
        [ ! -t 2 ] || echo >&2
        echo '  Installing them, which takes about a minute ...' >&2 ;;
    esac
  done
}

make_environment() {
  local python lock
  python=$(find_python) || exit 1
  lock=$locks$("$python" -c \
    'import sys; print("%d.%d" % sys.version_info[:2])').txt
  echo "Making the environment in $venv (${EXTRA:+more than }2.1 GB) with $("$python" --version)," \
    "from $lock ..." >&2
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    # Debian has the module that venv needs in a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "Installing python3-venv ..." >&2
      apt-get -q update >/dev/null &&
        apt-get -q install -y --no-install-recommends python3-venv >/dev/null ||
        fail "could not install Debian's package python3-venv."
    fi
    "$python" -m venv "$venv" ||
      fail "$python cannot make an environment. On Debian:" \
        "apt-get install python3-venv"
  fi
  # The lock file has every package, so that pip has nothing to resolve.
  (
    set -o pipefail
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps \
      --progress-bar off --use-pep517 --requirement "$lock" |
      show_progress "$lock"
  ) || fail "could not install what $lock lists; pip says why above."
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --editable . ||
    fail "could not install rlds2reverb itself; pip says why above."
  made_from > "$venv/made_from"
}

made_from() {
  cksum setup.py requirements/*.txt
}

[ "$(made_from)" = "$(cat "$venv/made_from" 2>/dev/null)" ] || make_environment
. "$venv/bin/activate"
