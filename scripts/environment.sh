# Makes the environment in .venv, if it is not there or not as setup.py says,
# and activates it. To be sourced, in the top folder of the repository.
#
# With EXTRA=beam it is another one, in .venv-beam, which has that extra too. With
# EXTRA=gpu it is .venv-gpu, which has TensorFlow for GPUs. PYTHON names the
# Python of a new environment, and VENV its folder.
venv=${VENV:-.venv${EXTRA:+-$EXTRA}}
# Containers often set it. Without byte code each program compiles TensorFlow
# anew, which takes longer than most of them run.
unset PYTHONDONTWRITEBYTECODE
locks=requirements/${EXTRA:+$EXTRA-}python
size='1.8 GB'
[ "${EXTRA:-}" != gpu ] || size='5 GB'

say() {
  echo "rlds2reverb: $*" >&2
}

fail() {
  say "$@"
  exit 1
}

version_of() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The first of the given Pythons that runs, and that has a lock file.
first_python() {
  local name version
  for name in "$@"; do
    version=$(version_of "$name") || continue
    [ -f "$locks$version.txt" ] || continue
    command -v "$name"
    return
  done
  return 1
}

# The best Python there is: one that has Reverb, which uv may fetch; or else a
# newer one.
find_python() {
  local version
  if [ -n "${PYTHON:-}" ]; then
    first_python "$PYTHON" && return
    version=$(version_of "$PYTHON") ||
      fail "PYTHON=$PYTHON is not a Python that runs."
    fail "PYTHON=$PYTHON is Python $version, which has no lock file among" \
      "$locks*.txt. Take one of those versions."
  fi
  first_python python3.11 python3.10 && return
  if command -v uv >/dev/null; then
    uv python find 3.11 2>/dev/null && return
    say 'uv fetches Python 3.11, which has Reverb ...'
    uv python install --quiet 3.11 2>/dev/null &&
      uv python find 3.11 2>/dev/null && return
  fi
  first_python python3 python3.12 python3.13 && return
  fail 'needs Python 3.10 to 3.13, and found none. On Debian or Ubuntu:' \
    'apt-get install python3 python3-venv. One that is not on the PATH can be' \
    'named: PYTHON=/path/to/python3.11. Where uv is on the PATH, it fetches one.'
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

# Makes an environment without packages; needs Debian's package for it there.
make_venv() {
  rm -rf "$venv"
  # What it prints is a paragraph on what to install; that is done here.
  "$1" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  local package
  package=python$(version_of "$1")-venv
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "Installing $package ..."
    apt-get -q update >/dev/null 2>&1 &&
      DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
        --no-install-recommends "$package" >/dev/null 2>&1 ||
      fail "could not install Debian's package $package."
  fi
  "$1" -m venv "$venv" >/dev/null 2>&1 ||
    fail "$1 cannot make an environment. On Debian or Ubuntu, as root:" \
      "apt-get install $package. Or put uv on the PATH, which needs no package."
}

# Installs with uv, which shows its own progress.
install_with_uv() {
  uv venv --quiet --seed --clear --python "$1" "$venv" ||
    fail 'uv could not make the environment, and says why above.'
  uv pip install --python "$venv/bin/python" --no-deps --requirement "$2" ||
    fail "uv could not install what $2 lists, and says why above."
  uv pip install --quiet --python "$venv/bin/python" --no-deps \
    --no-build-isolation --editable . ||
    fail 'uv could not install rlds2reverb itself, and says why above.'
}

install_with_pip() {
  make_venv "$1"
  # The lock file has every package, so that pip has nothing to resolve.
  (
    set -o pipefail
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps \
      --progress-bar off --use-pep517 --requirement "$2" |
      show_progress "$2"
  ) || fail "could not install what $2 lists; pip says why above."
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --use-pep517 --editable . ||
    fail 'could not install rlds2reverb itself; pip says why above.'
}

make_environment() {
  local python version lock
  python=$(find_python) || exit 1
  version=$(version_of "$python")
  lock=$locks$version.txt
  say "Making the environment in $venv, of about $size, with Python $version" \
    "($python), from $lock ..."
  if ! grep -q '^dm-reverb==' "$lock"; then
    say "There is no Reverb for Python $version: all works that needs no Reverb" \
      'server. Python 3.10 and 3.11 have it.'
  fi
  if command -v uv >/dev/null; then
    install_with_uv "$python" "$lock"
  else
    install_with_pip "$python" "$lock"
  fi
  made_from > "$venv/made_from"
  say "Made $venv, which takes $(du -sh "$venv" | cut -f1)."
}

made_from() {
  cksum setup.py requirements/*.txt
}

[ "$(made_from)" = "$(cat "$venv/made_from" 2>/dev/null)" ] || make_environment
. "$venv/bin/activate"
