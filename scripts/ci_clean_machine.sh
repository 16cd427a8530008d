#!/usr/bin/env bash
# Tests the installation instructions on a clean machine: runs the quickstart as
# root, and the README's installation and first Python block as an ordinary user.
# The machine is a minimal Debian if the script runs as root on Debian and may
# create one. Otherwise it only runs the quickstart in an empty home. Arguments
# are passed to the quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."

# Only this script sees the mounts below, and they end with it, even if it is
# killed. So removing the folder never reaches the devices of this machine.
if [ "$(id -u)" = 0 ] && [ -z "${own_mounts:-}" ] && unshare --mount true; then
  own_mounts=1 exec unshare --mount bash scripts/ci_clean_machine.sh "$@"
fi

suite=bookworm
work=$(mktemp -d)
root=$work/debian

clean_up() {
  for mount in dev proc; do
    ! mountpoint -q "$root/$mount" || umount "$root/$mount"
  done
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT

make_debian() {
  [ -n "${own_mounts:-}" ] && command -v apt-get >/dev/null || return 1
  if ! command -v debootstrap >/dev/null; then
    apt-get -q update >/dev/null &&
      apt-get -q install -y --no-install-recommends debootstrap >/dev/null ||
      return 1
  fi
  local mirror
  mirror=$(apt-get indextargets --format '$(SITE)' | head -1)
  echo "Creating a minimal Debian $suite ..."
  debootstrap --variant=minbase \
    --include=ca-certificates,python3,python3-venv "$suite" "$root" \
    ${mirror:+"$mirror"} >"$work/log" 2>&1 || return 1
  mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc" || return 1
  # Settings of this machine for the network and the package index.
  echo '127.0.0.1 localhost' > "$root/etc/hosts"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  cp /etc/pip.conf "$root/etc/pip.conf" 2>/dev/null || true
}

readme='python3 -m venv ~/env && . ~/env/bin/activate && pip install --quiet . &&
  awk "/^\`\`\`python/ {on = 1; next} /^\`\`\`/ && on {exit} on" README.md > ~/first.py &&
  cd ~ && cat first.py && python first.py'

# in_debian USER HOME COMMAND: runs a command in a new checkout in a user's home.
in_debian() {
  local user=$1 home=$2 command=$3
  shift 3
  mkdir -p "$root$home/rlds2reverb"
  git archive HEAD | tar -x -C "$root$home/rlds2reverb"
  chroot "$root" chown -R "$user" "$home"
  echo "As the user $user of a minimal Debian:"
  chroot "$root" env -i HOME="$home" USER="$user" LANG=C.UTF-8 \
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    su "$user" --preserve-environment --shell=/bin/bash --command \
    "cd ~/rlds2reverb && $command" -- "$user" "$@"
  rm -rf "$root$home/rlds2reverb"
}

if make_debian; then
  in_debian root /root 'bash scripts/quickstart.sh "$@"' "$@"
  chroot "$root" useradd --create-home someone
  in_debian someone /home/someone "$readme"
else
  echo 'Cannot create a minimal Debian here, so an empty home is used.'
  mkdir -p "$work/home/rlds2reverb"
  git archive HEAD | tar -x -C "$work/home/rlds2reverb"
  env -i HOME="$work/home" LANG=C.UTF-8 PATH="$PATH" \
    bash "$work/home/rlds2reverb/scripts/quickstart.sh" "$@"
fi
