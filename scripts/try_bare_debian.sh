#!/usr/bin/env bash
# Starts lora-train on a bare Debian 12. Makes one with mmdebstrap in its own folder, clones this repository into it,
# and follows a newcomer's steps there. Takes only network settings from this machine: proxies, certificates, pip.conf.
# Needs root.
#
#   scripts/try_bare_debian.sh [--torch DIR] FILE             a wheel or a release archive: scripts/try_install.sh
#   scripts/try_bare_debian.sh [--torch DIR] --build DIR      the wheel of this build, made here
#   scripts/try_bare_debian.sh [--ccache DIR] --quickstart    all of scripts/quickstart.sh
#
#   --torch DIR      use torch from this site-packages folder, read-only, instead of 3 GB from PyPI; same Python series
#   --ccache DIR     compile with this cache; the clone has this repository's path, so that the cache fits
#   --suite NAME     another system: jammy (Ubuntu 22.04) or noble (24.04), with
#   --mirror URL     Ubuntu's package server, and
#   --keyring FILE   the keys that sign its packages
#   --keep           keep the system if something fails, and say where it is
#
# Exit 0: it works. 1: it does not. 77: not tried, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

repository="$PWD" suite=bookworm mirror="" keyring="" torch="" ccache="" file="" build="" is_quickstart=false keep=false

die() { printf 'try_bare_debian: %s\n' "$*" >&2; exit 1; }
skip() { printf 'try_bare_debian: SKIPPED: %s\n' "$*"; exit 77; }

while [ $# -gt 0 ]; do
  case "$1" in
    --torch | --build | --ccache | --suite | --mirror | --keyring)
      [ $# -ge 2 ] || die "$1 needs a value"
      declare "${1#--}=$2"
      shift ;;
    --quickstart) is_quickstart=true ;;
    --keep) keep=true ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) die "unknown argument \"$1\"; scripts/try_bare_debian.sh --help lists them" ;;
    *) file="$(realpath "$1")" ;;
  esac
  shift
done
$is_quickstart || [ -n "$build" ] || [ -f "$file" ] || die "name a wheel, a release archive or a build, or say --quickstart"
[ "$(id -u)" -eq 0 ] || skip "only root may make a system in a folder"
command -v mmdebstrap >/dev/null || skip "no mmdebstrap; apt-get install mmdebstrap"

# The packages that a newcomer installs with apt-get before the first command of docs/install.md.
packages() {
  case "$file" in
    *.whl) echo python3-venv ;;
    *) echo python3-venv,xz-utils ;;
  esac
}

make_system() { # folder
  local options=(--quiet --variant=minbase --include=apt) option  # otherwise Ubuntu's has no libstdc++
  $is_quickstart || options+=(--include="$(packages)")
  while IFS= read -r option; do
    options+=(--aptopt="$option")
  done < <(apt-config dump | grep -E '^Acquire::https?::Proxy' || true)
  [ -z "$mirror" ] || options+=(--components=main,universe)  # has python3-venv in Ubuntu
  [ -z "$keyring" ] || options+=(--keyring="$keyring")
  mmdebstrap "${options[@]}" "$suite" "$1" ${mirror:+"$mirror"} || skip "mmdebstrap could not make $suite (no network?)"
  cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc/"
  mkdir -p "$1/etc/ssl/certs" "$1/usr/local/share/ca-certificates"
  cp -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
  cp -rL /usr/local/share/ca-certificates/. "$1/usr/local/share/ca-certificates/"
}

# Runs a command in the clone, with its own processes and mounts, which end with it.
enter() { # folder, command...
  local settings name
  mapfile -t settings < <(env | grep -iE '^(https?_proxy|no_proxy|PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT))=' || true)
  for name in torch ccache; do
    [ -z "${!name}" ] || mkdir -p "$1/mnt/$name"
  done
  root="$1" repository="$repository" torch="$torch" ccache="$ccache" unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm" && mount -t tmpfs tmpfs "$root/dev/shm"
    [ -z "$torch" ] || mount --bind -o ro "$torch" "$root/mnt/torch"
    [ -z "$ccache" ] || mount --bind "$ccache" "$root/mnt/ccache"
    exec chroot "$root" env -i -C "$repository" "$@"' enter \
    HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 ${ccache:+CCACHE_DIR=/mnt/ccache} \
    ${settings[@]+"${settings[@]}"} "${@:2}"
}

work="$(mktemp -d)"
tidy_up() {
  [ $? -eq 0 ] || ! $keep || { printf 'try_bare_debian: the system is in %s\n' "$work" >&2; return; }
  rm -rf --one-file-system "$work"
}
trap tidy_up EXIT
chmod 755 "$work"
[ -z "$build" ] || file="$(scripts/make_wheel.sh --build "$build" --output-dir "$work" | tail -n 1)"
system="$work/system"
make_system "$system"
printf '%s, %s\n' "$(. "$system/etc/os-release" && echo "$PRETTY_NAME")" "$(chroot "$system" ldd --version | head -n 1)"
git clone --quiet --depth 1 "file://$repository" "$system$repository"
printf 'clone of commit %s\n' "$(git -C "$repository" rev-parse --short=12 HEAD)"
if $is_quickstart; then
  enter "$system" scripts/quickstart.sh
else
  cp "$file" "$system/mnt/"
  enter "$system" scripts/try_install.sh ${torch:+--torch /mnt/torch} /usr/bin/python3 "/mnt/$(basename "$file")"
fi
