#!/usr/bin/env bash
# Prints the folder with OVMF, the UEFI firmware for QEMU: OVMF_CODE_4M.fd and OVMF_VARS_4M.fd. Debian's package is
# fetched into the cache folder; nothing is installed.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"

fetch_ovmf() {
  say "fetching OVMF (Debian trixie) into the cache, about 10 MiB"
  apt_private
  apt_closure trixie ovmf/trixie > "$1/packages"
  grep '^ovmf=' "$1/packages" | apt_unpack "$1/root"
  [ -e "$1/root/usr/share/OVMF/OVMF_CODE_4M.fd" ] || die "Debian's package ovmf has no OVMF_CODE_4M.fd any more"
}

echo "$(built_once "ovmf-$(content_hash "$HERE/lib.sh" "$HERE/get-ovmf.sh")" fetch_ovmf)/root/usr/share/OVMF"
