#!/usr/bin/env bash
# Prints the path of a QEMU that can use our drives: 10.1 or newer, with the vfio-user client.
# $QEMU, or the one on PATH, when it will do; else Debian's (trixie-backports) is fetched into
# the cache folder, with its own libraries, and nothing is installed.
# usage: get-qemu.sh          QEMU=fetch get-qemu.sh always takes the fetched one
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"

good_qemu() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\.[0-9]*\).*/\1/p;q') || return 1
  [ -n "$version" ] && [ "$(printf '%s\n' 10.1 "$version" | sort -V | head -n 1)" = 10.1 ] &&
    "$1" -device help 2>/dev/null | grep -q '"vfio-user-pci"'
}

# What a QEMU without screen and network cards does not need of its closure.
UNNEEDED='^(dpkg|perl.*|libperl.*|debconf|tar|coreutils|base-files|util-linux.*|mount|passwd|login.*|sysvinit.*|init-system-helpers|adduser|sensible-utils|bash|dash|diffutils|findutils|grep|sed|gzip|hostname|ncurses-.*|libc-bin|systemd.*|udev|dbus.*|libdb5.*|python3.*|libpython3.*|media-types|netbase|tzdata|ca-certificates|openssl.*|qemu-system-gui|qemu-system-modules-.*|seabios-hd|ovmf)='

wrapper() {  # a program of the fetched tree, run by its own dynamic loader
  cat <<-SH
	#!/bin/sh
	root=\$(dirname "\$(readlink -f "\$0")")/root
	lib=\$root/usr/lib/x86_64-linux-gnu
	export QEMU_MODULE_DIR=\$lib/qemu
	exec "\$lib/ld-linux-x86-64.so.2" --library-path "\$lib:\$lib/qemu" --argv0 $1 "\$root/usr/bin/$1" $2 "\$@"
	SH
}

fetch_qemu() {
  local dest=$1 program
  say "fetching QEMU (Debian trixie-backports) into the cache, about 155 MiB"
  apt_private
  apt_closure trixie-backports qemu-system-x86/trixie-backports qemu-utils/trixie-backports > "$dest/packages"
  grep -Ev "$UNNEEDED" "$dest/packages" | apt_unpack "$dest/root"
  for program in qemu-img qemu-io qemu-storage-daemon; do wrapper $program '' > "$dest/$program"; done
  wrapper qemu-system-x86_64 '-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu"' \
    > "$dest/qemu-system-x86_64"
  chmod +x "$dest"/qemu-*
  good_qemu "$dest/qemu-system-x86_64" || die "the fetched QEMU does not run: try $dest/qemu-system-x86_64 --version"
}

if [ "${QEMU:-}" != fetch ]; then
  if [ -n "${QEMU:-}" ]; then
    good_qemu "$QEMU" || die "QEMU=$QEMU is not a QEMU of 10.1 or newer with vfio-user-pci"
    command -v "$QEMU"; exit
  fi
  if command -v qemu-system-x86_64 >/dev/null && good_qemu qemu-system-x86_64; then
    command -v qemu-system-x86_64; exit
  fi
fi
folder=$(built_once "qemu-$(content_hash "$HERE/lib.sh" "$HERE/get-qemu.sh")" fetch_qemu)
echo "$folder/qemu-system-x86_64"
